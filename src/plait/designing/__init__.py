"""`plait design`: profile, search, probe, race, train, report; every stage is stored and can be resumed."""
