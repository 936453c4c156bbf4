"""The status of devices, and why a device idles.  It reads no driver; readings are passed in."""
