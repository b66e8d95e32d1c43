"""usearch with its default settings, controlled over standard streams. It indexes the vectors of a
file, and then runs all queries once, in one thread, for each line of input."""

import sys
import time

import numpy
from usearch.index import Index

vectors, queries, dimensions, k, answers = sys.argv[1:]
vectors = numpy.fromfile(vectors, numpy.float32).reshape(-1, int(dimensions))
queries = numpy.fromfile(queries, numpy.float32).reshape(-1, int(dimensions))

started = time.perf_counter()
index = Index(ndim=int(dimensions), metric="cos")
index.add(numpy.arange(len(vectors)), vectors)
built = time.perf_counter() - started

found = index.search(queries, int(k), threads=1)
found.keys.astype(numpy.uint32).tofile(answers)
print(f"built {built}", flush=True)
for _ in sys.stdin:
    started = time.perf_counter()
    index.search(queries, int(k), threads=1)
    print(time.perf_counter() - started, flush=True)
