"""What the GPU did: traces of Nsight Systems and of the torch profiler, read into numbers. Called by the command line and traces.py."""
