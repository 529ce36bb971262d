//! A medium that comes to an end.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::medium::Medium;

/// What happens when the steps are used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Nothing more is done: the process was killed, in the middle of a write.
    Killed,
    /// So many steps fail, the writes after half of their bytes, as on a full disk; those after
    /// them work.
    Full {
        /// The number of steps.
        steps: u64,
    },
}

/// Counts the changes that are made to all media of a test, and ends them.
#[derive(Debug)]
pub struct Steps {
    end: End,
    after: u64,
    taken: AtomicU64,
}

/// A medium whose changes are steps.
#[derive(Clone, Debug)]
pub struct Stepped {
    inner: Arc<dyn Medium>,
    steps: Arc<Steps>,
}

impl Steps {
    /// Returns steps that come to an `end` after so many.
    #[must_use]
    pub fn ending(end: End, after: u64) -> Arc<Self> {
        Arc::new(Self {
            end,
            after,
            taken: AtomicU64::new(0),
        })
    }

    /// Returns how many changes were made, or tried.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }

    /// Returns whether the end was reached.
    #[must_use]
    pub fn is_reached(&self) -> bool {
        self.taken() > self.after
    }

    fn take(&self) -> io::Result<()> {
        let taken = self.taken.fetch_add(1, Relaxed);
        match self.end {
            End::Killed if taken >= self.after => Err(io::ErrorKind::Interrupted.into()),
            End::Full { steps }
                if (self.after..self.after.saturating_add(steps)).contains(&taken) =>
            {
                Err(io::ErrorKind::StorageFull.into())
            }
            _ => Ok(()),
        }
    }
}

impl Stepped {
    /// Returns `inner`, whose changes are counted by `steps`.
    #[must_use]
    pub fn new(inner: Arc<dyn Medium>, steps: &Arc<Steps>) -> Self {
        Self {
            inner,
            steps: Arc::clone(steps),
        }
    }
}

impl Medium for Stepped {
    fn write_at(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let first = !self.steps.is_reached();
        let result = self.steps.take();
        if result.is_err() && first {
            self.inner
                .write_at(name, offset, &bytes[..bytes.len() / 2])?;
        }
        result?;
        self.inner.write_at(name, offset, bytes)
    }

    fn read_at(&self, name: &str, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.inner.read_at(name, offset, buf)
    }

    fn give_back(&self, name: &str, offset: u64, len: u64) -> io::Result<()> {
        self.steps.take()?;
        self.inner.give_back(name, offset, len)
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        self.steps.take()?;
        self.inner.sync(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.steps.take()?;
        self.inner.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.steps.take()?;
        self.inner.remove(name)
    }

    fn sync_names(&self) -> io::Result<()> {
        self.steps.take()?;
        self.inner.sync_names()
    }

    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        self.inner.list()
    }
}
