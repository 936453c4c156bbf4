"""Python packages of a job: resolved into a lock, unpacked, and added to an image as one layer.

``resolve`` turns requirements into a lock with hashes, ``unpack`` turns a lock into files, ``layer`` turns
the files into a layer of an image, and ``store`` keeps the images.  No step executes code of a package.
"""
