//! A server in memory that does what a test says.

use std::ops::Range;
use std::sync::Arc;

use crate::place::{Fault, Place, Reading};

/// Answers a request: for a range, its bytes or why not.
pub type Answer = dyn Fn(Range<u64>) -> Result<Vec<u8>, Fault> + Send + Sync;

/// One blob at a server in memory.
pub struct MemoryPlace {
    /// What the server does.
    pub answer: Arc<Answer>,
    /// How many requests it takes at a time. With 1, it gets them in the order in which they were sent.
    pub parallel: usize,
}

impl std::fmt::Debug for MemoryPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryPlace").finish_non_exhaustive()
    }
}

impl Place for MemoryPlace {
    fn read<'a>(
        &'a self,
        range: Range<u64>,
        take: &'a mut (dyn FnMut(&[u8]) + Send),
    ) -> Reading<'a> {
        let answer = Arc::clone(&self.answer);
        Box::pin(async move {
            // It may block, as tests want it.
            let answered = tokio::task::spawn_blocking(move || answer(range)).await;
            match answered {
                Ok(bytes) => take(&bytes?),
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            }
            Ok(())
        })
    }

    fn parallel(&self) -> usize {
        self.parallel
    }
}
