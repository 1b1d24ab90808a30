"""Long work in parts: where they are stored, who makes them, and how failures are handled.

- `run`: one run, with its description, digests of its inputs, finished parts, and the way they are resumed
- `places`: folders and buckets, written whole or not at all
- `work`: the description of work that workers are sent, one worker, and failures
- `crew`: many workers, on the cores of this machine; `ray`: on a cluster
"""
