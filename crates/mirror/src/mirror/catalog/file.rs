//! The file of the catalog: opened again after the disk failed it, and done without while it cannot be used.

use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use rawio::regular::{self, Links};
use redb::backends::FileBackend;
use redb::{Database, ReadableDatabase as _, TableHandle as _};

use super::{LINKS, MANIFESTS, PROOFS, TAGS};

/// Bytes of its pages that the database keeps in memory. By itself it would take a gigabyte.
const CACHE_BYTES: usize = 8 << 20;
/// How long the file is left alone after a failure: opening it reads all of it.
const REST: Duration = Duration::from_secs(1);
/// What a damaged file is called from then on, for who wants to look at it.
const DAMAGED: &str = "damaged";

/// The database of the catalog.
///
/// After an I/O error (a full disk, for example) redb refuses all requests until the file is opened again. While it
/// cannot be, the catalog knows nothing, which costs requests to registries and no correctness.
#[derive(Debug)]
pub(super) struct CatalogFile {
    path: PathBuf,
    /// Replaced when the file is rewritten; transactions on the old one continue.
    database: RwLock<Option<Arc<Database>>>,
    /// When it failed last; `None` before it was opened first. Held while it is opened.
    failed: Mutex<Option<Instant>>,
}

impl CatalogFile {
    pub(super) fn at(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            database: RwLock::new(None),
            failed: Mutex::new(None),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the database; `None` while the file cannot be used. Whoever opens it has `learn` read it first.
    pub(super) fn database(
        &self,
        learn: &dyn Fn(&Database) -> Result<(), redb::Error>,
    ) -> Option<Arc<Database>> {
        if let Some(database) = &*self.database.read() {
            return Some(Arc::clone(database));
        }
        // Others need not wait while one opens it.
        let mut failed = self.failed.try_lock()?;
        if failed.is_some_and(|at| at.elapsed() < REST) {
            return None;
        }
        let opened = open(&self.path, learn);
        *failed = Some(Instant::now());
        let path = self.path.display();
        let opened = opened.inspect_err(|error| {
            log::error!(
                "{path} cannot be used, so each image costs requests to its registry: {error}"
            );
        });
        let opened = opened.ok()?;
        *self.database.write() = Some(Arc::clone(&opened));
        Some(opened)
    }

    /// Returns whether the file is in use.
    pub(super) fn is_open(&self) -> bool {
        self.database.read().is_some()
    }

    /// Takes another database in place of this one.
    pub(super) fn replace(&self, database: Database) {
        *self.database.write() = Some(Arc::new(database));
    }

    /// Does something with the database. If that fails for a reason that does not pass, the file is opened again later.
    pub(super) fn run<T>(
        &self,
        database: Arc<Database>,
        work: impl FnOnce(&Database) -> Result<T, redb::Error>,
    ) -> Result<T, redb::Error> {
        let done = caught(|| work(&database));
        if done.as_ref().is_err_and(stays) {
            *self.failed.lock() = Some(Instant::now());
            let mut current = self.database.write();
            let gone = current.take_if(|current| Arc::ptr_eq(current, &database));
            drop(current);
            // What panicked may panic again.
            let _closed = caught(|| {
                drop((gone, database));
                Ok(())
            });
        }
        done
    }
}

/// Opens the file. One that is damaged is renamed, and a new one is begun.
fn open(
    path: &Path,
    learn: &dyn Fn(&Database) -> Result<(), redb::Error>,
) -> Result<Arc<Database>, redb::Error> {
    let read = || {
        caught(|| {
            let database = database_at(path)?;
            learn(&database)?;
            Ok(Arc::new(database))
        })
    };
    match read() {
        Err(error) if is_damage(&error) => {
            let aside = path.with_extension(DAMAGED);
            log::error!(
                "{} is damaged, and from now on {}; a new one is begun: {error}",
                path.display(),
                aside.display()
            );
            fs::rename(path, &aside)?;
            read()
        }
        read => read,
    }
}

/// Opens a database with all tables.
pub(super) fn database_at(path: &Path) -> Result<Database, redb::Error> {
    let file = regular::open_to_write(path, Links::Followed, true)?;
    let database = Database::builder()
        .set_cache_size(CACHE_BYTES)
        .set_check_integrity_on_open(true)
        .create_with_backend(FileBackend::new(file)?)?;
    let write = database.begin_write()?;
    write.open_table(TAGS)?;
    write.open_table(PROOFS)?;
    write.open_table(MANIFESTS)?;
    write.commit()?;
    Ok(database)
}

/// Removes the records of earlier releases that stood in place of proofs.
pub(super) fn forget_links(database: &Database) -> Result<(), redb::Error> {
    let read = database.begin_read()?;
    let mut tables = read.list_tables()?;
    if tables.any(|table| table.name() == LINKS.name()) {
        let write = database.begin_write()?;
        write.delete_table(LINKS)?;
        write.commit()?;
    }
    Ok(())
}

/// Returns whether what is at the place of the file is no catalog, and never becomes one.
fn is_damage(error: &redb::Error) -> bool {
    use io::ErrorKind::{InvalidData, InvalidInput, IsADirectory, UnexpectedEof};
    use redb::Error::{
        Corrupted, Io, RepairAborted, TableIsMultimap, TableTypeMismatch, TypeDefinitionChanged,
        UpgradeRequired,
    };
    match error {
        Corrupted(_)
        | RepairAborted
        | TableIsMultimap(_)
        | TableTypeMismatch { .. }
        | TypeDefinitionChanged { .. }
        | UpgradeRequired(_) => true,
        Io(error) => matches!(
            error.kind(),
            InvalidData | InvalidInput | IsADirectory | UnexpectedEof
        ),
        _ => false,
    }
}

/// Returns whether later requests to the database fail, too.
fn stays(error: &redb::Error) -> bool {
    use redb::Error::{
        Corrupted, DatabaseClosed, Io, LockPoisoned, PreviousIo, TransactionPoisoned,
    };
    matches!(
        error,
        Corrupted(_) | DatabaseClosed | Io(_) | LockPoisoned(_) | PreviousIo | TransactionPoisoned
    )
}

/// Does something that panics where a page has been damaged.
fn caught<T>(work: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, redb::Error> {
    let done = catch_unwind(AssertUnwindSafe(work));
    done.unwrap_or_else(|_| Err(redb::Error::Corrupted("reading it panicked".to_owned())))
}
