"""usearch with the settings it comes with, asked over standard streams: its index is built of the
vectors in a file, and each line of input has all queries answered once, in one thread."""

import sys
import time

import numpy
from usearch.index import Index

vectors, queries, dimensions, k, answers = sys.argv[1:]
vectors = numpy.fromfile(vectors, numpy.float32).reshape(-1, int(dimensions))
queries = numpy.fromfile(queries, numpy.float32).reshape(-1, int(dimensions))

begun = time.perf_counter()
index = Index(ndim=int(dimensions), metric="cos")
index.add(numpy.arange(len(vectors)), vectors)
built = time.perf_counter() - begun

found = index.search(queries, int(k), threads=1)
found.keys.astype(numpy.uint32).tofile(answers)
print(f"built {built}", flush=True)
for _ in sys.stdin:
    begun = time.perf_counter()
    index.search(queries, int(k), threads=1)
    print(time.perf_counter() - begun, flush=True)
