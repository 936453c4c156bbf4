"""The programs that are compared: other queues, ``docker run``, and training loops."""
