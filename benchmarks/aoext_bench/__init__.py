"""Measures aoext: `aoext bench`, `aoext demo`, `aoext quality`, the speeds of `aoext report`, benchmarks/.

bench.py, demo.py and quality.py read their options and print; what they measure (bench_points.py,
quality_models.py), how (bench_run.py, demo_run.py, quality_run.py), their tables (bench_view.py,
floor_view.py, demo_view.py, quality_view.py) and their charts are files of that name beside them. Below lie
the clocks: timing.py, budget.py, clocks.py, cuda_clock.py, devices.py, pool.py, busy.py.
What is called and what it must give is aoext.reference.
"""
