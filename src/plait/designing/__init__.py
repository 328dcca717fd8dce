"""The main job in one go: profile, search, probe, pick, train, report; every stage is kept and gone on with."""
