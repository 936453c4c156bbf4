"""The compared programs: other queues, ``docker run``, and training loops."""
