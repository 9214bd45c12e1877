"""What a process tells beside its steps: settings, machine, loaders, compilations, memory."""
