//! A cache of values that are expensive to make: the last used ones, each made once.

use std::future::Future;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OnceCell;

/// The most entries, however small they are.
const ENTRIES_MAX: usize = 1024;

/// Values by key; the least recently used is evicted first. Concurrent requests wait for a value in the making.
#[derive(Debug)]
pub(crate) struct Recent<K, V> {
    most: u64,
    size: fn(&V) -> u64,
    /// The last used is the last.
    entries: Mutex<Vec<Entry<K, V>>>,
}

#[derive(Debug)]
struct Entry<K, V> {
    key: K,
    value: Arc<OnceCell<Arc<V>>>,
}

impl<K: Copy + PartialEq, V> Recent<K, V> {
    /// Returns a cache that keeps values of at most `most` bytes together, as `size` counts them.
    pub(crate) const fn new(most: u64, size: fn(&V) -> u64) -> Self {
        Self {
            most,
            size,
            entries: Mutex::new(Vec::new()),
        }
    }

    /// Returns the value of `key`, and calls `make` if it is missing.
    ///
    /// # Errors
    /// If it cannot be made; failures are not cached.
    pub(crate) async fn get<E>(
        &self,
        key: K,
        make: impl Future<Output = Result<V, E>>,
    ) -> Result<Arc<V>, E> {
        let cell = self.entry(key);
        let make = async { make.await.map(Arc::new) };
        let made = cell.get_or_try_init(|| make).await.map(Arc::clone);
        self.trim();
        made
    }

    fn entry(&self, key: K) -> Arc<OnceCell<Arc<V>>> {
        let mut entries = self.entries.lock();
        let found = entries.iter().position(|entry| entry.key == key);
        let entry = match found {
            Some(at) => entries.remove(at),
            None => Entry {
                key,
                value: Arc::default(),
            },
        };
        let value = Arc::clone(&entry.value);
        entries.push(entry);
        value
    }

    /// Drops what was not used for the longest time, as long as there is too much. What is being
    /// made has no size yet.
    fn trim(&self) {
        let mut entries = self.entries.lock();
        let mut bytes = 0_u64;
        let fit = entries.iter().rev().take_while(|entry| {
            let size = entry.value.get().map_or(0, |value| (self.size)(value));
            bytes = bytes.saturating_add(size);
            bytes <= self.most
        });
        let fit = fit.count().min(ENTRIES_MAX);
        let goes = entries.len() - fit;
        entries.drain(..goes);
    }

    /// Returns how many bytes are kept.
    pub(crate) fn bytes(&self) -> u64 {
        let entries = self.entries.lock();
        let made = entries.iter().filter_map(|entry| entry.value.get());
        made.map(|value| (self.size)(value)).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Gets a value of so many bytes, and returns whether it was made for that.
    async fn makes(recent: &Recent<u8, u64>, key: u8, bytes: u64) -> bool {
        let made = Cell::new(false);
        let make = async {
            made.set(true);
            Ok::<_, ()>(bytes)
        };
        assert_eq!(recent.get(key, make).await.map(|got| *got), Ok(bytes));
        made.get()
    }

    #[tokio::test]
    async fn the_last_used_stay() {
        let recent = Recent::new(10, |bytes| *bytes);
        assert!(makes(&recent, 1, 4).await);
        assert!(makes(&recent, 2, 4).await);
        assert!(!makes(&recent, 1, 4).await);
        assert!(makes(&recent, 3, 4).await);
        assert_eq!(recent.bytes(), 8);
        assert!(!makes(&recent, 1, 4).await);
        assert!(!makes(&recent, 3, 4).await);
        assert!(makes(&recent, 2, 4).await, "it had to go");
        assert!(makes(&recent, 4, 11).await);
        assert_eq!(recent.bytes(), 0, "what is larger than all is not kept");
    }

    #[tokio::test]
    async fn there_are_not_too_many_and_failures_are_forgotten() {
        let recent = Recent::<usize, ()>::new(10, |()| 0);
        for key in 0..ENTRIES_MAX + 10 {
            let _made = recent.get(key, async { Ok::<_, ()>(()) }).await;
        }
        assert_eq!(recent.entries.lock().len(), ENTRIES_MAX);
        assert_eq!(recent.get(0, async { Err(7) }).await, Err(7));
        assert_eq!(
            recent.get(0, async { Ok::<_, ()>(()) }).await.map(|_| ()),
            Ok(())
        );
    }

    #[tokio::test]
    async fn who_comes_at_the_same_time_waits_for_the_one_who_makes_it() {
        let recent = Recent::new(10, |_: &u64| 1);
        let made = Cell::new(0);
        let get = || {
            recent.get(1, async {
                made.set(made.get() + 1);
                tokio::task::yield_now().await;
                Ok::<_, ()>(5)
            })
        };
        let (one, two, three) = tokio::join!(get(), get(), get());
        assert_eq!(
            (one, two, three),
            (Ok(Arc::new(5)), Ok(Arc::new(5)), Ok(Arc::new(5)))
        );
        assert_eq!(made.get(), 1);
    }
}
