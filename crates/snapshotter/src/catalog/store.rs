//! The database file: transactions, and opening it again after the disk failed it.

use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use parking_lot::RwLock;
use redb::backends::FileBackend;
use redb::{Database, ReadTransaction, ReadableDatabase as _, WriteTransaction};

use crate::error::{Result, SnapshotError};

/// Bytes of the database that are kept in memory: some thousand snapshots, 1 KiB each.
const CACHE_BYTES: usize = 4 << 20;

/// One redb file.
///
/// After an I/O error (a full disk, for example) redb refuses all requests until the file is opened
/// again. So that the node recovers when the disk does, [`Store`] reopens it before the next
/// transaction.
#[derive(Debug)]
pub(super) struct Store {
    path: PathBuf,
    /// `None` after an I/O error until the file is open again.
    database: RwLock<Option<Database>>,
}

impl Store {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let database = RwLock::new(Some(open(path)?));
        Ok(Self {
            path: path.to_owned(),
            database,
        })
    }

    /// Runs `f` on the state that the last transaction left.
    pub(super) fn read<T>(
        &self,
        doing: &'static str,
        f: impl FnOnce(&ReadTransaction) -> Result<T>,
    ) -> Result<T> {
        self.reopen()?;
        let result = match &*self.database.read() {
            Some(database) => begin_read(database).and_then(|tx| f(&tx)),
            None => Err(closed()),
        };
        self.finish(doing, result)
    }

    /// Runs `f` in a transaction, which is rolled back if it fails.
    pub(super) fn write<T>(
        &self,
        doing: &'static str,
        f: impl FnOnce(&WriteTransaction) -> Result<T>,
    ) -> Result<T> {
        self.reopen()?;
        let result = match &*self.database.read() {
            Some(database) => commit(database, f),
            None => Err(closed()),
        };
        self.finish(doing, result)
    }

    fn finish<T>(&self, doing: &'static str, result: Result<T>) -> Result<T> {
        if result.as_ref().is_err_and(must_reopen) {
            log::warn!("the disk failed the snapshotter's metadata; it is opened again");
            *self.database.write() = None;
        }
        result.map_err(|error| error.while_doing(doing))
    }

    fn reopen(&self) -> Result<()> {
        if self.database.read().is_some() {
            return Ok(());
        }
        let mut database = self.database.write();
        if database.is_none() {
            *database = Some(open(&self.path)?);
        }
        Ok(())
    }
}

fn begin_read(database: &Database) -> Result<ReadTransaction> {
    Ok(database.begin_read()?)
}

fn commit<T>(database: &Database, f: impl FnOnce(&WriteTransaction) -> Result<T>) -> Result<T> {
    let tx = database.begin_write()?;
    match f(&tx) {
        Ok(value) => {
            tx.commit()?;
            Ok(value)
        }
        Err(error) => {
            // The first error says more than one of going back.
            drop(tx.abort());
            Err(error)
        }
    }
}

fn open(path: &Path) -> Result<Database> {
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(SnapshotError::io("open", path))?;
    let backend = FileBackend::new(file)
        .map_err(|error| SnapshotError::from(error).while_doing("open the file"))?;
    let database = Database::builder()
        .set_cache_size(CACHE_BYTES)
        .create_with_backend(backend)
        .map_err(|error| SnapshotError::from(error).while_doing("open the file"))?;
    Ok(database)
}

fn must_reopen(error: &SnapshotError) -> bool {
    matches!(error, SnapshotError::Catalog { source, .. }
        if matches!(**source, redb::Error::Io(_) | redb::Error::PreviousIo | redb::Error::DatabaseClosed))
}

fn closed() -> SnapshotError {
    redb::StorageError::DatabaseClosed.into()
}
