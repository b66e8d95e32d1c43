//! Opens the database file, creates its tables and migrates older versions.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::jobs::store::JobStoreError;

/// Application id in the header of the job store's file: `tgJ1`. Files of other programs have
/// different ids.
const APPLICATION_ID: i64 = 0x7467_4a31;
/// SQL scripts that migrate the tables. Each one migrates the version equal to its index to the
/// next version.
const MIGRATIONS: [&str; 4] = [
    include_str!("schema/1.sql"),
    include_str!("schema/2.sql"),
    include_str!("schema/3.sql"),
    include_str!("schema/4.sql"),
];
/// Number of the last possible event of a job. A row key has 32 bits for the job and 32 bits for
/// the event.
pub(super) const EVENTS_MAX: i64 = (1 << 32) - 1;
/// Longest wait for the job store's file while another server writes to it.
const BUSY_TIMEOUT: Duration = Duration::from_millis(if cfg!(test) { 200 } else { 5000 });

/// Reason why an operation on the job store's file failed.
#[derive(Debug)]
pub(super) enum SqliteFailure {
    /// Error that SQLite reported.
    Sqlite(rusqlite::Error),
    /// Invalid request, or invalid data in the job store's file.
    Invalid(String),
}

impl SqliteFailure {
    /// Returns a readable error about the job store that names its file.
    pub(super) fn to_store_error(&self, file: &Path) -> JobStoreError {
        let file = file.display();
        let err = match self {
            Self::Invalid(sentence) => return JobStoreError(sentence.clone()),
            Self::Sqlite(err) => err,
        };
        JobStoreError(match err.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => format!("the disk of `{file}` is full"),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                format!("another program keeps `{file}` locked")
            }
            Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => format!(
                "`{file}` is damaged or not a job database ({err}); move it away to start a new one"
            ),
            Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
                format!("`{file}` cannot be opened and written: {err}")
            }
            Some(_) | None => format!("`{file}`: {err}"),
        })
    }
}

impl From<rusqlite::Error> for SqliteFailure {
    fn from(err: rusqlite::Error) -> Self {
        Self::Sqlite(err)
    }
}

impl From<io::Error> for SqliteFailure {
    fn from(err: io::Error) -> Self {
        Self::Invalid(err.to_string())
    }
}

impl From<JobStoreError> for SqliteFailure {
    fn from(err: JobStoreError) -> Self {
        Self::Invalid(err.0)
    }
}

/// Opens the job store's `file` for writing, and creates or migrates it if needed.
pub(super) fn open(file: &Path) -> Result<Connection, SqliteFailure> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(file) {
        Err(err) if err.kind() != io::ErrorKind::AlreadyExists => return Err(err.into()),
        Err(_) | Ok(_) => {}
    }
    // Locked against other servers: settings of a new file must be made before anyone reads it.
    let folder = File::open(file.parent().unwrap_or(Path::new(".")))?;
    folder.lock()?;
    let db = connect(file)?;
    let version = version(&db, file)?;
    if version < MIGRATIONS.len() {
        migrate(&db, file, version)?;
    }
    Ok(db)
}

/// Connects to the job store's `file`, which must exist.
pub(super) fn connect(file: &Path) -> Result<Connection, SqliteFailure> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(file, flags)?;
    db.busy_timeout(BUSY_TIMEOUT)?;
    db.set_prepared_statement_cache_capacity(48);
    // A cache of 1 MiB, temporary data in memory, and at most 8 MiB of WAL left on the disk after a
    // burst.
    db.execute_batch(
        "PRAGMA cache_size = -1024; PRAGMA temp_store = MEMORY; \
         PRAGMA journal_size_limit = 8388608",
    )?;
    Ok(db)
}

fn version(db: &Connection, file: &Path) -> Result<usize, SqliteFailure> {
    let number = |name| db.query_row(&format!("PRAGMA {name}"), (), |row| row.get::<_, i64>(0));
    let tables = || db.query_row("SELECT count(*) FROM sqlite_schema", (), |row| row.get(0));
    let version = number("user_version")?;
    let application = number("application_id")?;
    if application != APPLICATION_ID && (version, application, tables()?) != (0, 0, 0_i64) {
        let file = file.display();
        return Err(SqliteFailure::Invalid(format!(
            "`{file}` belongs to another program; move it away to start a new one"
        )));
    }
    match usize::try_from(version) {
        Ok(version) if version <= MIGRATIONS.len() => Ok(version),
        Ok(_) | Err(_) => Err(SqliteFailure::Invalid(format!(
            "`{}` has version {version}, and this toolgate supports up to {}; use a newer toolgate, \
             or move the file away to start a new one",
            file.display(),
            MIGRATIONS.len(),
        ))),
    }
}

/// Creates the job store's tables, or runs the migrations since `version`.
fn migrate(db: &Connection, file: &Path, version: usize) -> Result<(), SqliteFailure> {
    // This setting takes effect only in an empty file, and then persists.
    db.execute_batch("PRAGMA auto_vacuum = INCREMENTAL")?;
    let mode: String = db.query_row("PRAGMA journal_mode = WAL", (), |row| row.get(0))?;
    if mode != "wal" {
        return Err(SqliteFailure::Invalid(format!(
            "the disk of `{}` cannot be shared between servers; use a local disk",
            file.display(),
        )));
    }
    let steps = MIGRATIONS[version..].concat();
    let latest = MIGRATIONS.len();
    db.execute_batch(&format!(
        "BEGIN IMMEDIATE; {steps} PRAGMA user_version = {latest}; \
         PRAGMA application_id = {APPLICATION_ID}; COMMIT"
    ))?;
    Ok(())
}
