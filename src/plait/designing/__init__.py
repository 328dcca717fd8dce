"""The main job in one go: profile, search, probe, race, train, report; every stage is kept and gone on with."""
