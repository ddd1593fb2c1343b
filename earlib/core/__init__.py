"""The paper's system: adapter, explorer, critic, replay, objective and learner."""
