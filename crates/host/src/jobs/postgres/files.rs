//! Shares contents among the servers of a fleet: files of jobs, and long results.
//!
//! A content of up to 16 MiB is in the database, a larger one in the folder or bucket that
//! `fleet.files` names. Each content has a row in the database. The row of a large content is
//! inserted before the content is written, and marked as complete afterwards, so that no content
//! lacks a row. A server marks a row before it removes the content.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, GenericClient};
use toolgate_contract::JobId;
use toolgate_net::spawn_blocking;
use toolgate_postgres::{PostgresError, PostgresFailure, SharedPostgresPool};

use super::reads::id_bytes;
use super::results::SharedResultRow;
use crate::jobs::shared_folder::{FleetLargeFileLocation, LargeFileStore};
use crate::jobs::store::JobStoreError;

/// Maximum size in bytes of a shared file or result that is stored in the database.
const DATABASE_BYTES_MAX: u64 = 16 << 20;
/// Number of bytes of a shared file or result that one database row contains.
const CHUNK_BYTES: usize = 1 << 20;
/// Maximum number of shared files and results that are transferred from and to the database at
/// once. The limit leaves connections for the jobs.
const TRANSFERS_MAX: usize = 2;
/// Maximum number of large shared files and results that are read or written at once.
const LARGE_TRANSFERS_MAX: usize = 4;
/// Longest wait to read or write a shared file or result while too many others are transferred.
const TRANSFER_WAIT_MAX: Duration = Duration::from_secs(30);
/// Time limit for writing a shared file or result to the database.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for reading, writing or removing a large shared file or result.
const LARGE_TIMEOUT: Duration = Duration::from_secs(1800);
/// Maximum number of expired files and results that are removed in one statement, so that the
/// statement ends in time.
const REMOVE_STEP: i64 = 20;

/// Id of a shared file or result: a digest of the workspace and of the parts that identify the
/// content, such as the job and the file name.
pub(super) type SharedContentId = [u8; 16];

/// Store of files and long results that the servers of a fleet share.
pub(in crate::jobs) struct FleetContentStore {
    pub(super) pool: SharedPostgresPool,
    pub(super) workspace: String,
    /// Folder or bucket for large contents, if the settings name one.
    large: Option<Arc<dyn LargeFileStore>>,
    transfers: Semaphore,
    large_transfers: Semaphore,
    /// Number of bytes of results that this server has stored since it last removed old ones.
    pub(super) new_result_bytes: AtomicU64,
}

/// Reason why a file or a long result is not shared with the servers of a fleet.
#[derive(Debug)]
pub(in crate::jobs) enum ContentSharingError {
    /// The database does not answer. A later try may succeed.
    Unavailable(JobStoreError),
    /// The file or result cannot be stored, for this reason.
    Refused(String),
}

impl From<PostgresFailure> for ContentSharingError {
    fn from(failure: PostgresFailure) -> Self {
        match failure {
            PostgresFailure::Unavailable(_) => Self::Unavailable(failure.into()),
            PostgresFailure::Incomplete { .. }
            | PostgresFailure::Damaged { .. }
            | PostgresFailure::Failed(_) => Self::Refused(failure.to_string()),
        }
    }
}

/// A file or a long result to share with the servers of a fleet.
pub(super) enum SharedContent<'c> {
    /// A file that does not change while it is shared.
    File(Arc<File>),
    /// Bytes in memory.
    Bytes(&'c [u8]),
}

impl SharedContent<'_> {
    /// Returns the chunk at the byte offset `at` of this file or result of `bytes` bytes.
    async fn chunk(&self, at: u64, bytes: u64) -> io::Result<Cow<'_, [u8]>> {
        let len = usize::try_from(bytes - at).unwrap_or(usize::MAX).min(CHUNK_BYTES);
        match self {
            Self::File(file) => {
                let file = file.clone();
                let read = spawn_blocking(move || {
                    let mut chunk = vec![0; len];
                    file.read_exact_at(&mut chunk, at).map(|()| chunk)
                });
                read.await.map_err(io::Error::other)?.map(Cow::Owned)
            }
            Self::Bytes(all) => {
                let start = usize::try_from(at).unwrap_or(usize::MAX);
                let chunk = all.get(start..start.saturating_add(len));
                chunk.map(Cow::Borrowed).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
            }
        }
    }

    /// Returns the shared file, or a temporary file with the bytes in memory.
    async fn to_file(&self) -> io::Result<Arc<File>> {
        match self {
            Self::File(file) => Ok(file.clone()),
            Self::Bytes(all) => {
                let all = all.to_vec();
                let written = spawn_blocking(move || {
                    let file = tempfile::tempfile()?;
                    file.write_all_at(&all, 0).map(|()| Arc::new(file))
                });
                written.await.map_err(io::Error::other).flatten()
            }
        }
    }
}

/// Database row of a shared file or long result.
pub(super) struct SharedContentRow {
    pub(super) id: SharedContentId,
    /// Job that produced the file. `None` for a long result.
    pub(super) job: Option<Vec<u8>>,
    pub(super) bytes: u64,
    /// Caller and list entry of a long result. `None` for the file of a job.
    pub(super) result: Option<SharedResultRow>,
}

/// Location of a stored file or result: in the database, or in the store of large contents.
pub(super) struct SharedContentLocation {
    pub(super) id: SharedContentId,
    pub(super) bytes: u64,
    pub(super) is_large: bool,
}

/// Returns the id of the file `name` that attempt number `attempt` of `job` produced.
fn job_file_id(workspace: &str, job: JobId, attempt: u32, name: &str) -> SharedContentId {
    let attempt = attempt.to_string();
    content_id(workspace, &["job", &job.to_string(), &attempt, name])
}

/// Returns the content id: a digest of `workspace` and `parts`.
pub(super) fn content_id(workspace: &str, parts: &[&str]) -> SharedContentId {
    let mut hasher = blake3::Hasher::new();
    hasher.update(workspace.as_bytes());
    for part in parts {
        hasher.update(&[0]);
        hasher.update(part.as_bytes());
    }
    let mut id = [0; 16];
    id.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    id
}

/// Returns the name of the shared file or result `id` in the store of large contents.
fn large_file_name(id: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(id)
}

impl FleetContentStore {
    /// Creates the store of files and results that the servers of `workspace` share. `large` is the
    /// folder or bucket for large contents.
    pub(super) fn new(
        pool: SharedPostgresPool,
        workspace: &str,
        large: Option<&FleetLargeFileLocation>,
    ) -> Self {
        Self {
            pool,
            workspace: workspace.to_owned(),
            large: large.map(|place| place.store_of(workspace)),
            transfers: Semaphore::new(TRANSFERS_MAX),
            large_transfers: Semaphore::new(LARGE_TRANSFERS_MAX),
            new_result_bytes: AtomicU64::new(0),
        }
    }

    /// Stores the file `name` that attempt number `attempt` of `job` produced. Each attempt has its
    /// own files. Does nothing if the file is stored already.
    pub(in crate::jobs) async fn store_job_file(
        &self,
        job: JobId,
        attempt: u32,
        name: &str,
        file: File,
    ) -> Result<(), ContentSharingError> {
        let length = file.metadata().map(|about| about.len());
        let bytes = length.map_err(|err| ContentSharingError::Refused(err.to_string()))?;
        let id = job_file_id(&self.workspace, job, attempt, name);
        let row = SharedContentRow { id, job: Some(id_bytes(job)), bytes, result: None };
        self.store(&row, &SharedContent::File(Arc::new(file))).await
    }

    /// Opens the file `name` that attempt number `attempt` of `job` produced. Returns `None` if the
    /// file is not shared.
    pub(in crate::jobs) async fn open_job_file(
        &self,
        job: JobId,
        attempt: u32,
        name: &str,
    ) -> Result<Option<File>, JobStoreError> {
        let id = job_file_id(&self.workspace, job, attempt, name);
        let lent = self.pool.acquire().await?;
        let work = find_content(&lent.connection.client, &self.workspace, &id);
        let result = self.pool.with_timeout(self.pool.query_timeout, work).await;
        let Some(place) = lent.give_back(result)? else { return Ok(None) };
        if place.is_large {
            return self.open_large(&place).await;
        }
        let _transfer = begin_transfer(&self.transfers).await?;
        let file = Arc::new(tempfile::tempfile().map_err(|err| io_error(&err))?);
        let mut chunks = ChunkReader::new(&place);
        while let Some((at, chunk)) = self.next_chunk(&mut chunks).await? {
            let file = file.clone();
            let written = spawn_blocking(move || file.write_all_at(&chunk, at)).await;
            written.map_err(io::Error::other).flatten().map_err(|err| io_error(&err))?;
        }
        if !chunks.is_complete() {
            // It was removed meanwhile.
            return Ok(None);
        }
        Ok(Some(file.try_clone().map_err(|err| io_error(&err))?))
    }

    /// Stores the shared file or result `content`, and then marks its `row` in the database as
    /// complete.
    pub(super) async fn store(
        &self,
        row: &SharedContentRow,
        content: &SharedContent<'_>,
    ) -> Result<(), ContentSharingError> {
        let is_large = row.bytes > DATABASE_BYTES_MAX;
        let transfer =
            begin_transfer(if is_large { &self.large_transfers } else { &self.transfers });
        let _transfer = transfer.await.map_err(ContentSharingError::Unavailable)?;
        if is_large {
            return self.store_large(row, content).await;
        }
        let mut lent = self.pool.acquire().await?;
        let client = &mut lent.connection.client;
        let work = write_in_database(client, &self.workspace, row, content);
        let result = self.pool.with_timeout(TRANSFER_TIMEOUT, work).await;
        Ok(lent.give_back(result)?)
    }

    async fn store_large(
        &self,
        row: &SharedContentRow,
        content: &SharedContent<'_>,
    ) -> Result<(), ContentSharingError> {
        let Some(large) = &self.large else {
            let why = "it is larger than 16 MiB, and `fleet.files` is not set";
            return Err(ContentSharingError::Refused(why.to_owned()));
        };
        let mut lent = self.pool.acquire().await?;
        let work = announce_content(&mut lent.connection.client, &self.workspace, row);
        let result = self.pool.with_timeout(self.pool.query_timeout, work).await;
        lent.give_back(result)?;
        let name = large_file_name(&row.id);
        let refused = |why: String| {
            ContentSharingError::Refused(format!("it cannot be stored in `fleet.files`: {why}"))
        };
        let file = content.to_file().await.map_err(|err| refused(err.to_string()))?;
        let stored = in_time(large.put(&name, file)).await;
        stored.map_err(|err| refused(err.to_string()))?;
        let lent = self.pool.acquire().await?;
        let work = complete_content(&lent.connection.client, &row.id);
        let result = self.pool.with_timeout(self.pool.query_timeout, work).await;
        if lent.give_back(result)? {
            return Ok(());
        }
        // Its row was removed meanwhile, so no server would remove the content.
        let _ = in_time(large.delete(&name, row.bytes)).await;
        Err(refused("its job was removed meanwhile".to_owned()))
    }

    /// Returns the bytes of the file or result at the location `place`, or `None` if it was
    /// removed.
    pub(super) async fn read(
        &self,
        place: &SharedContentLocation,
    ) -> Result<Option<Vec<u8>>, JobStoreError> {
        if place.is_large {
            let Some(file) = self.open_large(place).await? else { return Ok(None) };
            let bytes = usize::try_from(place.bytes).unwrap_or(usize::MAX);
            let read = spawn_blocking(move || {
                let mut content = vec![0; bytes];
                file.read_exact_at(&mut content, 0).map(|()| content)
            });
            let content = read.await.map_err(io::Error::other).flatten();
            return Ok(Some(content.map_err(|err| io_error(&err))?));
        }
        let _transfer = begin_transfer(&self.transfers).await?;
        let mut content = Vec::new();
        let mut chunks = ChunkReader::new(place);
        while let Some((_, chunk)) = self.next_chunk(&mut chunks).await? {
            content.extend(chunk);
        }
        Ok(chunks.is_complete().then_some(content))
    }

    async fn open_large(
        &self,
        place: &SharedContentLocation,
    ) -> Result<Option<File>, JobStoreError> {
        let Some(large) = &self.large else {
            let why = "another server has stored the file in `fleet.files`, which is not set here";
            return Err(JobStoreError(why.to_owned()));
        };
        let _transfer = begin_transfer(&self.large_transfers).await?;
        let opened = in_time(large.fetch(&large_file_name(&place.id), place.bytes)).await;
        opened.map_err(|err| io_error(&err))
    }

    /// Returns the next chunk of a file or result in the database, and the offset of its first
    /// byte.
    async fn next_chunk(
        &self,
        chunks: &mut ChunkReader,
    ) -> Result<Option<(u64, Vec<u8>)>, JobStoreError> {
        if chunks.is_complete() {
            return Ok(None);
        }
        let lent = self.pool.acquire().await?;
        let work = read_chunk(&lent.connection.client, &chunks.id, chunks.number);
        let result = self.pool.with_timeout(self.pool.query_timeout, work).await;
        let Some(chunk) = lent.give_back(result)? else { return Ok(None) };
        let at = chunks.read;
        chunks.read += chunk.len() as u64;
        chunks.number += 1;
        Ok(Some((at, chunk)))
    }

    /// Removes expired files and results. No two servers remove the same one.
    pub(in crate::jobs) async fn remove_expired(&self) -> Result<(), JobStoreError> {
        loop {
            let due = self.mark_expired().await?;
            let count = due.len();
            let mut removed = Vec::new();
            for content in due {
                if !content.is_large || self.delete_large(&content).await {
                    removed.push(content.id);
                }
            }
            let is_stuck = removed.is_empty();
            if !is_stuck {
                let lent = self.pool.acquire().await?;
                let work = delete_contents(&lent.connection.client, &removed);
                let result = self.pool.with_timeout(self.pool.query_timeout, work).await;
                lent.give_back(result)?;
            }
            if is_stuck || (count as u64) < REMOVE_STEP.unsigned_abs() {
                return Ok(());
            }
        }
    }

    /// Returns expired files and results that this server has to remove. Marks them, so that other
    /// servers leave them alone for 5 minutes.
    async fn mark_expired(&self) -> Result<Vec<ExpiredContent>, JobStoreError> {
        let lent = self.pool.acquire().await?;
        let client = &lent.connection.client;
        let work = mark_expired_contents(client, &self.workspace, self.large.is_some());
        let result = self.pool.with_timeout(self.pool.query_timeout, work).await;
        Ok(lent.give_back(result)?)
    }

    /// Removes a large file or result. Returns false if that fails, so that the database row stays
    /// and a server tries again later.
    async fn delete_large(&self, content: &ExpiredContent) -> bool {
        let Some(large) = &self.large else { return false };
        let removed = in_time(large.delete(&large_file_name(&content.id), content.bytes)).await;
        if let Err(err) = &removed {
            tracing::warn!("an expired file cannot be removed from `fleet.files`: {err}");
        }
        removed.is_ok()
    }

    /// Marks the files of jobs that no longer exist as expired. The removal of a job does so
    /// itself, unless the server that removed the job has an older version.
    pub(in crate::jobs) async fn expire_unknown(&self) -> Result<(), JobStoreError> {
        let lent = self.pool.acquire().await?;
        let work = expire_contents_of_missing_jobs(&lent.connection.client, &self.workspace);
        let result = self.pool.with_timeout(self.pool.query_timeout, work).await;
        Ok(lent.give_back(result)?)
    }
}

/// Waits until few enough files and results are transferred, and returns the permit for one more.
///
/// # Errors
/// No permit is free within 30 s.
async fn begin_transfer(permits: &Semaphore) -> Result<SemaphorePermit<'_>, JobStoreError> {
    match timeout(TRANSFER_WAIT_MAX, permits.acquire()).await {
        Ok(Ok(permit)) => Ok(permit),
        Ok(Err(_)) | Err(_) => {
            let why = "this server reads and writes too many shared files at once; try again";
            Err(JobStoreError(why.to_owned()))
        }
    }
}

/// Runs `work` on the store of large files. Fails if it takes longer than 30 minutes.
async fn in_time<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let ended = timeout(LARGE_TIMEOUT, work).await;
    ended.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// An expired file or result that this server has to remove.
struct ExpiredContent {
    id: Vec<u8>,
    bytes: u64,
    is_large: bool,
}

/// State of a read of a file or result from the database, chunk by chunk.
struct ChunkReader {
    id: SharedContentId,
    bytes: u64,
    read: u64,
    number: i32,
}

impl ChunkReader {
    fn new(place: &SharedContentLocation) -> Self {
        Self { id: place.id, bytes: place.bytes, read: 0, number: 0 }
    }

    fn is_complete(&self) -> bool {
        self.read >= self.bytes
    }
}

fn io_error(err: &io::Error) -> JobStoreError {
    JobStoreError(format!("a shared file cannot be read: {err}"))
}

/// Writes a shared file or result and its row to the database in one transaction.
async fn write_in_database(
    client: &mut Client,
    workspace: &str,
    row: &SharedContentRow,
    content: &SharedContent<'_>,
) -> Result<(), PostgresError> {
    let work = client.transaction().await?;
    if row.result.is_some() {
        // After a crash of the database, the newest results may be missing.
        work.batch_execute("SET LOCAL synchronous_commit = off").await?;
    }
    if insert_content(&work, workspace, row, false).await? {
        let sql = "INSERT INTO toolgate_fleet.file_chunks (file, number, content) \
                   VALUES ($1, $2, $3)";
        let id = row.id.as_slice();
        for (number, at) in (0_i32..).zip((0..row.bytes).step_by(CHUNK_BYTES)) {
            let chunk = content.chunk(at, row.bytes).await;
            let chunk = chunk.map_err(|err| PostgresError::Rejected(err.to_string()))?;
            let chunk: &[u8] = &chunk;
            let params =
                [(&id as _, Type::BYTEA), (&number as _, Type::INT4), (&chunk as _, Type::BYTEA)];
            work.execute_typed(sql, &params).await?;
        }
    }
    Ok(work.commit().await?)
}

/// Inserts the database row of a file or result that is about to be written to the store of large
/// contents.
async fn announce_content(
    client: &mut Client,
    workspace: &str,
    row: &SharedContentRow,
) -> Result<(), PostgresError> {
    let work = client.transaction().await?;
    insert_content(&work, workspace, row, true).await?;
    Ok(work.commit().await?)
}

/// Inserts the database row of a shared file or result, and the list entry of a result. Returns
/// false if an earlier attempt has inserted them.
async fn insert_content(
    client: &impl GenericClient,
    workspace: &str,
    row: &SharedContentRow,
    is_large: bool,
) -> Result<bool, PostgresError> {
    let sql = "INSERT INTO toolgate_fleet.files \
               (id, workspace, job, bytes, is_large, is_complete, until) \
               VALUES ($1, $2, $3, $4, $5, NOT $5, now() + make_interval(secs => $6)) \
               ON CONFLICT (id) DO NOTHING";
    let id = row.id.as_slice();
    let bytes = i64::try_from(row.bytes).unwrap_or(i64::MAX);
    let keep = row.result.as_ref().map(|result| result.keep.as_secs_f64());
    let params = [
        (&id as _, Type::BYTEA),
        (&workspace as _, Type::TEXT),
        (&row.job as _, Type::BYTEA),
        (&bytes as _, Type::INT8),
        (&is_large as _, Type::BOOL),
        (&keep as _, Type::FLOAT8),
    ];
    let is_new = client.execute_typed(sql, &params).await? == 1;
    if let Some(result) = row.result.as_ref().filter(|_| is_new) {
        result.insert(client, &row.id, workspace).await?;
    }
    Ok(is_new)
}

/// Marks a large file or result as complete. Returns false if the database row is missing or has
/// expired.
async fn complete_content(client: &Client, id: &SharedContentId) -> Result<bool, PostgresError> {
    let sql = "UPDATE toolgate_fleet.files SET is_complete = true \
               WHERE id = $1 AND (until IS NULL OR until > now())";
    let id = id.as_slice();
    Ok(client.execute_typed(sql, &[(&id as _, Type::BYTEA)]).await? == 1)
}

/// Returns the location of the shared file or result `id`, or `None` if it is missing or
/// incomplete.
async fn find_content(
    client: &Client,
    workspace: &str,
    id: &SharedContentId,
) -> Result<Option<SharedContentLocation>, PostgresError> {
    let sql = "SELECT bytes, is_large FROM toolgate_fleet.files WHERE id = $1 \
               AND workspace = $2 AND is_complete AND (until IS NULL OR until > now())";
    let key = id.as_slice();
    let params = [(&key as _, Type::BYTEA), (&workspace as _, Type::TEXT)];
    let Some(row) = client.query_typed_opt(sql, &params).await? else { return Ok(None) };
    let (bytes, is_large): (i64, bool) = (row.try_get(0)?, row.try_get(1)?);
    Ok(Some(SharedContentLocation { id: *id, bytes: bytes.unsigned_abs(), is_large }))
}

async fn read_chunk(
    client: &Client,
    id: &SharedContentId,
    number: i32,
) -> Result<Option<Vec<u8>>, PostgresError> {
    let sql = "SELECT content FROM toolgate_fleet.file_chunks WHERE file = $1 AND number = $2";
    let id = id.as_slice();
    let params = [(&id as _, Type::BYTEA), (&number as _, Type::INT4)];
    let Some(row) = client.query_typed_opt(sql, &params).await? else { return Ok(None) };
    let chunk: Vec<u8> = row.try_get(0)?;
    // An empty chunk would never end the content.
    Ok(Some(chunk).filter(|chunk| !chunk.is_empty()))
}

/// Marks expired files and results, so that for 5 minutes no other server removes them, and returns
/// them.
async fn mark_expired_contents(
    client: &Client,
    workspace: &str,
    removes_large: bool,
) -> Result<Vec<ExpiredContent>, PostgresError> {
    let sql = "WITH due AS (SELECT id FROM toolgate_fleet.files WHERE workspace = $1 \
               AND until <= now() AND (removal_until IS NULL OR removal_until < now()) \
               AND ($2 OR NOT is_large) ORDER BY until LIMIT $3 FOR UPDATE SKIP LOCKED) \
               UPDATE toolgate_fleet.files AS file \
               SET removal_until = now() + interval '5 minutes' FROM due \
               WHERE file.id = due.id RETURNING file.id, file.bytes, file.is_large";
    let params = [
        (&workspace as _, Type::TEXT),
        (&removes_large as _, Type::BOOL),
        (&REMOVE_STEP as _, Type::INT8),
    ];
    let rows = client.query_typed(sql, &params).await?;
    let mut marked = Vec::with_capacity(rows.len());
    for row in &rows {
        let bytes: i64 = row.try_get(1)?;
        let (id, is_large) = (row.try_get(0)?, row.try_get(2)?);
        marked.push(ExpiredContent { id, bytes: bytes.unsigned_abs(), is_large });
    }
    Ok(marked)
}

async fn delete_contents(client: &Client, ids: &[Vec<u8>]) -> Result<(), PostgresError> {
    let sql = "DELETE FROM toolgate_fleet.files WHERE id = ANY($1)";
    client.execute_typed(sql, &[(&ids as _, Type::BYTEA_ARRAY)]).await?;
    Ok(())
}

async fn expire_contents_of_missing_jobs(
    client: &Client,
    workspace: &str,
) -> Result<(), PostgresError> {
    let sql = "UPDATE toolgate_fleet.files AS file SET until = now() WHERE workspace = $1 \
               AND job IS NOT NULL AND until IS NULL \
               AND NOT EXISTS (SELECT FROM toolgate_fleet.jobs WHERE jobs.id = file.job)";
    client.execute_typed(sql, &[(&workspace as _, Type::TEXT)]).await?;
    Ok(())
}
