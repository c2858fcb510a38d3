"""The engine: the compiled program (`device`), the host around it (`host`), and several processes (`processes`)."""
