"""The engine: the program (`device`), its `host`, several processes (`processes`), and a plain `reference`."""
