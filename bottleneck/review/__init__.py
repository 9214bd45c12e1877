"""TensorBoard: a folder that it can show, and a plugin that shows the diagnosis in it.

In: diagnoses and their traces. Out: folders of adapted traces, event files and page data; a
TensorBoard plugin. Nothing is imported here: TensorBoard loads the plugin in its own process, and an
import that fails there would stop it from starting.
"""
