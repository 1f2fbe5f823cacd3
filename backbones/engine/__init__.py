"""What the loop of every training needs: optimisers, schedules, checkpoints, ranks, outcomes."""
