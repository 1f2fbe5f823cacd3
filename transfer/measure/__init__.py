"""Time of a step of one model beside one of another, which `--measure-cost` asks for. Nothing is trained or scored."""
