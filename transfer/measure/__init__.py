"""Time of a step of one run's model beside one of another's, for `--measure-cost`."""
