//! A cache that can be exchanged while it is read.

use std::sync::{Arc, PoisonError, RwLock};

use crate::{BlockCache, BlockRange, FileKey, Lookup};

/// A replaceable cache, or none. A read in progress while it is exchanged finishes on the former
/// one.
#[derive(Debug)]
pub struct SwapCache<C>(RwLock<Option<Arc<C>>>);

impl<C> SwapCache<C> {
    /// Returns a place with `cache` in it.
    pub const fn new(cache: Option<Arc<C>>) -> Self {
        Self(RwLock::new(cache))
    }

    /// Returns the present cache.
    pub fn current(&self) -> Option<Arc<C>> {
        // Nothing that is done under the lock can panic half way.
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Puts another cache there, and returns the one before.
    pub fn exchange(&self, cache: Option<Arc<C>>) -> Option<Arc<C>> {
        let mut place = self.0.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *place, cache)
    }
}

impl<C: BlockCache> BlockCache for SwapCache<C> {
    fn get(&self, file: &FileKey, range: BlockRange, out: &mut [u8]) -> Lookup {
        match self.current() {
            Some(cache) => cache.get(file, range, out),
            None => Lookup::Miss {
                blocks: range.len(),
            },
        }
    }

    fn get_once(&self, file: &FileKey, range: BlockRange, out: &mut [u8]) -> Lookup {
        match self.current() {
            Some(cache) => cache.get_once(file, range, out),
            None => Lookup::Miss {
                blocks: range.len(),
            },
        }
    }

    fn put(&self, file: &FileKey, range: BlockRange, data: &[u8]) {
        if let Some(cache) = self.current() {
            cache.put(file, range, data);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::testing::MemCache;
    use crate::{BLOCK_SIZE, BlockIndex, FileId, Version};

    const KEY: FileKey = FileKey {
        file: FileId(1),
        version: Version {
            size: 1 << 20,
            mtime: crate::Timestamp { secs: 0, nanos: 0 },
            ctime: crate::Timestamp { secs: 0, nanos: 0 },
            inode: 1,
        },
    };

    fn run() -> BlockRange {
        BlockRange::with_len(BlockIndex(3), 2)
    }

    fn filled(byte: u8) -> Arc<MemCache> {
        let cache = MemCache::default();
        cache.put(&KEY, run(), &[byte; 2 * BLOCK_SIZE]);
        Arc::new(cache)
    }

    #[test]
    fn what_is_there_answers() {
        let place = SwapCache::new(None);
        let mut out = [0; 2 * BLOCK_SIZE];
        let missed = Lookup::Miss { blocks: 2 };
        assert_eq!(place.get(&KEY, run(), &mut out), missed);
        assert!(place.exchange(Some(filled(1))).is_none());
        assert_eq!(place.get(&KEY, run(), &mut out), Lookup::Hit { blocks: 2 });
        assert_eq!(out[BLOCK_SIZE], 1);
        assert!(place.exchange(Some(filled(2))).is_some());
        assert_eq!(place.get(&KEY, run(), &mut out), Lookup::Hit { blocks: 2 });
        assert_eq!(out[BLOCK_SIZE], 2);
        assert!(place.exchange(None).is_some());
        assert_eq!(place.get(&KEY, run(), &mut out), missed);
    }

    /// Signals that it is being read, and waits until it may continue.
    #[derive(Debug)]
    struct Slow {
        inner: Arc<MemCache>,
        begun: Mutex<Sender<()>>,
        go_on: Mutex<Receiver<()>>,
    }

    impl BlockCache for Slow {
        fn get(&self, file: &FileKey, range: BlockRange, out: &mut [u8]) -> Lookup {
            self.begun.lock().unwrap().send(()).unwrap();
            self.go_on.lock().unwrap().recv().unwrap();
            self.inner.get(file, range, out)
        }
    }

    #[test]
    fn a_reader_finishes_on_the_cache_that_it_began_on() {
        let ((begun, begins), (go, go_on)) = (channel(), channel());
        let old = Slow {
            inner: filled(1),
            begun: Mutex::new(begun),
            go_on: Mutex::new(go_on),
        };
        let place = SwapCache::new(Some(Arc::new(old)));
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut out = [0; 2 * BLOCK_SIZE];
                (place.get(&KEY, run(), &mut out), out[0])
            });
            begins.recv().unwrap();
            // The reader does not hold up the exchange.
            let before = place.exchange(None);
            assert!(before.is_some() && place.current().is_none());
            go.send(()).unwrap();
            assert_eq!(reader.join().unwrap(), (Lookup::Hit { blocks: 2 }, 1));
        });
    }
}
