"""`python -m transfer.predict`: a trained run on new images: detections, classes, features, neighbors, maps.

`trained` opens the model of a run, calls the functions of its task, and holds and writes what they find.
"""
