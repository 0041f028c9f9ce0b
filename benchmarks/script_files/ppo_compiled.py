"""`ppo_compiled.py PPO ARGUMENTS...`: cleanrl's ppo.py with two lines more, which compile the agent's two methods."""

import sys
from pathlib import Path

path = Path(sys.argv.pop(1)).resolve()
made = "    agent = Agent(envs).to(device)\n"
source = path.read_text()
assert source.count(made) == 1, "another ppo.py"
compiled = made + "    agent.get_value = torch.compile(agent.get_value)\n" + (
    "    agent.get_action_and_value = torch.compile(agent.get_action_and_value)\n")
exec(compile(source.replace(made, compiled), str(path), "exec"), {"__name__": "__main__", "__file__": str(path)})
