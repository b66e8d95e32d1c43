//! Stores the files that jobs produced: copies them to a separate folder when the job ends.
#![allow(clippy::disallowed_methods, reason = "the folder is the host's own, outside every root")]

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use toolgate_contract::{
    ArtefactSelection, CallError, JobArtefact, JobId, JobSnapshot, OpenArtefact, OutgoingFile,
    ProducedFile,
};
use zip::CompressionMethod;
use zip::write::{SimpleFileOptions, ZipWriter};

/// Number of bytes of a job's file that are copied at once.
const PIECE_BYTES: usize = 256 << 10;

/// Retry time that is reported if too many zip downloads are open.
const ZIP_RETRY: Duration = Duration::from_secs(5);
/// Maximum number of zip downloads that may be open at once.
const ZIPS_MAX: usize = 4;

/// The stored files of all jobs, and the size limit for the files of each job.
#[derive(Debug, Clone)]
pub(super) struct ArtefactFileStore {
    folder: PathBuf,
    bytes_max: u64,
    /// Permits for zip downloads, because each open zip is a full copy of the files.
    zip_permits: Arc<Semaphore>,
}

impl ArtefactFileStore {
    pub(super) fn new(folder: &Path, bytes_max: u64) -> Self {
        Self {
            folder: folder.join("files"),
            bytes_max,
            zip_permits: Arc::new(Semaphore::new(ZIPS_MAX)),
        }
    }

    /// Copies the files that a job produced. Returns the stored files, and messages about the files
    /// that were not stored.
    pub(super) fn store(
        &self,
        id: JobId,
        left: Vec<ProducedFile>,
    ) -> (Vec<JobArtefact>, Vec<String>) {
        let mut kept = Vec::new();
        let mut lost = Vec::new();
        let mut names = HashSet::new();
        let mut room = self.bytes_max;
        for file in left {
            let name = free_name(&mut names, &file.path);
            match self.store_one(id, &name, &file, room) {
                Ok(artefact) => {
                    room -= artefact.bytes;
                    kept.push(artefact);
                }
                Err(err) => lost.push(format!(
                    "the file `{}` of the job could not be stored: {err}",
                    file.path
                )),
            }
        }
        kept.sort_by(|a, b| a.name.cmp(&b.name));
        (kept, lost)
    }

    fn store_one(
        &self,
        id: JobId,
        name: &str,
        left: &ProducedFile,
        room: u64,
    ) -> io::Result<JobArtefact> {
        let folder = self.job_folder(id);
        // Checked first, so that an oversized file is not copied.
        if left.handle.metadata()?.len() > room {
            return Err(too_large());
        }
        DirBuilder::new().mode(0o700).recursive(true).create(&folder)?;
        let path = folder.join(name);
        let copy =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        let bytes = match copy_all(&left.handle, &copy, room) {
            Ok(bytes) => bytes,
            Err(err) => {
                fs::remove_file(&path)?;
                return Err(err);
            }
        };
        copy.sync_all()?;
        let from = left.handle.metadata()?;
        let nanos = i32::try_from(from.mtime_nsec()).unwrap_or(0);
        Ok(JobArtefact {
            name: name.to_owned(),
            path: left.path.clone(),
            bytes,
            modified: Timestamp::new(from.mtime(), nanos).unwrap_or(Timestamp::UNIX_EPOCH),
            media_type: media_type(name),
        })
    }

    /// Reserves one of the few zip downloads, if `which` selects the files of `job` as a zip.
    ///
    /// # Errors
    /// Too many zip downloads are open.
    pub(super) fn reserve_zip(
        &self,
        job: &JobSnapshot,
        which: &ArtefactSelection,
    ) -> Result<Option<OwnedSemaphorePermit>, CallError> {
        let is_zip = match (which, job.downloads().len()) {
            (ArtefactSelection::Named(_), _) | (_, 0) | (ArtefactSelection::Main, 1) => false,
            (ArtefactSelection::All | ArtefactSelection::Main, _) => true,
        };
        if !is_zip {
            return Ok(None);
        }
        let permit = self.zip_permits.clone().try_acquire_owned();
        permit.map(Some).map_err(|_| CallError::Limited {
            message: format!("too many zip files are being sent (limit {ZIPS_MAX})"),
            retry_after: ZIP_RETRY,
        })
    }

    /// Opens one of the files of `job` for download, or all of them as a zip. `fetched` are files
    /// that come from a store which several servers share, by name. `zip_permit` comes from
    /// [`reserve_zip`](Self::reserve_zip).
    pub(super) fn open(
        &self,
        job: &JobSnapshot,
        which: &ArtefactSelection,
        fetched: &HashMap<String, File>,
        zip_permit: Option<OwnedSemaphorePermit>,
    ) -> Result<OpenArtefact, CallError> {
        let downloads = job.downloads();
        match (which, downloads.as_slice()) {
            (ArtefactSelection::Named(name), all) => {
                let artefact = all.iter().find(|artefact| artefact.name == *name);
                self.open_one(job, artefact.ok_or_else(|| no_file(job, name))?, fetched)
            }
            (ArtefactSelection::All | ArtefactSelection::Main, []) => Err(no_files(job)),
            (ArtefactSelection::Main, [only]) => self.open_one(job, only, fetched),
            (ArtefactSelection::All | ArtefactSelection::Main, all) => {
                self.open_zip(job, all, fetched, zip_permit)
            }
        }
    }

    fn open_one(
        &self,
        job: &JobSnapshot,
        artefact: &JobArtefact,
        fetched: &HashMap<String, File>,
    ) -> Result<OpenArtefact, CallError> {
        let missing = |err| CallError::NotFound {
            message: format!(
                "the file `{}` of job {} no longer exists: {err}",
                artefact.name, job.id
            ),
        };
        let file = OutgoingFile {
            handle: Arc::new(self.open_content(job, artefact, fetched).map_err(missing)?),
            bytes: artefact.bytes,
            media_type: artefact.media_type.clone(),
            guard: None,
        };
        Ok(OpenArtefact { name: artefact.name.clone(), file })
    }

    /// Opens a stored file of `job` for reading.
    fn open_content(
        &self,
        job: &JobSnapshot,
        artefact: &JobArtefact,
        fetched: &HashMap<String, File>,
    ) -> io::Result<File> {
        let Some(printed) = job.printed_download() else {
            return match fetched.get(&artefact.name) {
                Some(file) => file.try_clone(),
                None => self.open_stored(job.id, &artefact.name),
            };
        };
        let file = tempfile::tempfile()?;
        file.write_all_at(printed.as_bytes(), 0)?;
        Ok(file)
    }

    fn open_zip(
        &self,
        job: &JobSnapshot,
        downloads: &[JobArtefact],
        fetched: &HashMap<String, File>,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<OpenArtefact, CallError> {
        let permit: Arc<dyn Any + Send + Sync> = Arc::new(permit);
        let zipped = move || -> io::Result<OutgoingFile> {
            // It is missing if no job has left a file yet.
            DirBuilder::new().mode(0o700).recursive(true).create(&self.folder)?;
            // The temporary file has no name and vanishes with its last reader.
            let mut zip = ZipWriter::new(tempfile::tempfile_in(&self.folder)?);
            for artefact in downloads {
                let options = SimpleFileOptions::default()
                    .compression_method(CompressionMethod::Stored)
                    .large_file(artefact.bytes > u64::from(u32::MAX) / 2);
                zip.start_file(&artefact.name, options)?;
                io::copy(&mut self.open_content(job, artefact, fetched)?, &mut zip)?;
            }
            let file = zip.finish()?;
            let bytes = file.metadata()?.len();
            let media_type = "application/zip".to_owned();
            Ok(OutgoingFile { handle: Arc::new(file), bytes, media_type, guard: Some(permit) })
        };
        let failed = |err: io::Error| CallError::Failed {
            message: "the zip file could not be created".to_owned(),
            cause: err.to_string(),
        };
        Ok(OpenArtefact { name: format!("{}.zip", job.id), file: zipped().map_err(failed)? })
    }

    /// Opens a file of the job `id` that is stored in the folder.
    pub(super) fn open_stored(&self, id: JobId, name: &str) -> io::Result<File> {
        File::open(self.job_folder(id).join(name))
    }

    /// Removes the stored file `name` of the job `id`, and the folder of the job if it is empty
    /// then.
    pub(super) fn remove_one(&self, id: JobId, name: &str) -> io::Result<()> {
        let folder = self.job_folder(id);
        fs::remove_file(folder.join(name))?;
        // Other files of the job may be left.
        let _ = fs::remove_dir(folder);
        Ok(())
    }

    /// Returns the jobs that have a folder for their files.
    pub(super) fn jobs_with_files(&self) -> Vec<JobId> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }

    /// Removes the stored files of `jobs`, which no longer exist in the job store.
    pub(super) fn remove(&self, jobs: &[JobId]) {
        for id in jobs {
            // Most jobs have no files.
            let _ = fs::remove_dir_all(self.job_folder(*id));
        }
    }

    fn job_folder(&self, id: JobId) -> PathBuf {
        self.folder.join(id.to_string())
    }
}

/// Returns the file name at the end of `path`, made unique among `names`, and adds it to `names`.
fn free_name(names: &mut HashSet<String>, path: &str) -> String {
    let base = path.rsplit('/').next().filter(|base| !matches!(*base, "" | "." | ".."));
    let base = base.unwrap_or("file");
    let (stem, dot_extension) = match base.rfind('.') {
        Some(dot) if dot > 0 => base.split_at(dot),
        Some(_) | None => (base, ""),
    };
    let numbered = (2u32..).map(|n| format!("{stem}-{n}{dot_extension}"));
    let mut all = std::iter::once(base.to_owned()).chain(numbered);
    let free = all.find(|name| !names.contains(name)).unwrap_or_default();
    names.insert(free.clone());
    free
}

fn media_type(name: &str) -> String {
    mime_guess::from_path(name).first_or_octet_stream().essence_str().to_owned()
}

/// Copies the file `from` to `to` from the start, whatever the current offset of `from` is. Returns
/// the number of copied bytes.
///
/// # Errors
/// The file is longer than `room` bytes.
pub(super) fn copy_all(from: &File, to: &File, room: u64) -> io::Result<u64> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut done = 0;
    loop {
        let read = match from.read_at(&mut piece, done) {
            Ok(0) => return Ok(done),
            Ok(read) => read,
            Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
            Err(err) => return Err(err),
        };
        if done + read as u64 > room {
            return Err(too_large());
        }
        to.write_all_at(&piece[..read], done)?;
        done += read as u64;
    }
}

fn too_large() -> io::Error {
    let why = "the job's files would exceed their size limit";
    io::Error::new(io::ErrorKind::FileTooLarge, why)
}

fn no_files(job: &JobSnapshot) -> CallError {
    let message = if job.state.is_terminal() {
        format!("job {} left no files", job.id)
    } else {
        format!("job {} is {} and has left no files yet", job.id, job.state.as_str())
    };
    CallError::NotFound { message }
}

fn no_file(job: &JobSnapshot, name: &str) -> CallError {
    let names: Vec<_> = job.downloads().into_iter().map(|artefact| artefact.name).collect();
    if names.is_empty() {
        return no_files(job);
    }
    let name: String = name.chars().take(100).collect();
    let message = format!("job {} left no file `{name}`; it left {}", job.id, names.join(", "));
    CallError::NotFound { message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_with_the_same_name_get_different_names() {
        let mut names = HashSet::new();
        let named = ["a/plot.png", "b/plot.png", "c/plot-2.png", ".hidden", "d/.hidden", "e/.."]
            .map(|path| free_name(&mut names, path));
        assert_eq!(
            named,
            ["plot.png", "plot-2.png", "plot-2-2.png", ".hidden", ".hidden-2", "file"]
        );
    }
}
