# Bytes on the heap, and exports of bytes that are counted.
