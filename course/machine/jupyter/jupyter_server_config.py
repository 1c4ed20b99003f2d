"""What `course lab` sets for Jupyter's server; a student's own settings go before these."""

c = get_config()  # noqa: F821
c.Application.log_level = "ERROR"
c.KernelManager.transport_encryption = "auto"  # else each kernel warns of somebody who might listen
c.ServerApp.jpserver_extensions = {"course.machine.lab_server": True}
for room in ("assignment_list", "course_list", "formgrader"):  # instructors', each with a configuration
    c.ServerApp.jpserver_extensions[f"nbgrader.server_extensions.{room}"] = False
