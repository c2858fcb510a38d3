"""The processes that train one federation in step."""

from fedjax_bal.engine.processes.process_group import ProcessGroup, processes, take_part
from fedjax_bal.engine.processes.rendezvous import ProcessPlace, meet_processes
