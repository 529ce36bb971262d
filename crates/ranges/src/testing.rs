//! A server in memory that does what a test says.

use std::ops::Range;
use std::sync::Arc;

use crate::place::{Fault, Place, Reading};

/// Answers a request: for a range, its bytes or why not.
pub type Answer = dyn Fn(Range<u64>) -> Result<Vec<u8>, Fault> + Send + Sync;

/// One blob at a server in memory.
pub struct MemoryPlace(pub Arc<Answer>);

impl std::fmt::Debug for MemoryPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("MemoryPlace").finish()
    }
}

impl Place for MemoryPlace {
    fn read<'a>(
        &'a self,
        range: Range<u64>,
        take: &'a mut (dyn FnMut(&[u8]) + Send),
    ) -> Reading<'a> {
        let answer = Arc::clone(&self.0);
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
        16
    }
}
