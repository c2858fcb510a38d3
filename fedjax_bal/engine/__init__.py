"""The engine: the compiled program (`device`), its `host`, runs on several `processes`, and a plain `reference`."""
