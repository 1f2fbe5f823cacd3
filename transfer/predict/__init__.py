"""`python -m transfer.predict`: what a run trained, used on new images: detections, classes, features, neighbors, maps.

`trained` opens the model of a run, calls the functions of its task, and holds and writes what they find.
"""
