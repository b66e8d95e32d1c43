//! Workers: processes of the server that compute on hostile input, and may crash on it.
//!
//! A worker is the server's own executable under another name, or a small program of its own.
//! Before it reads any input, it gives up everything except memory, processor time and the
//! connection to the server.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::exit;
use std::time::Duration;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetStatus,
    Scope,
};
use rustix::process::{
    Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit,
};
use rustix::time::{ClockId, clock_gettime};

use super::layers::{LANDLOCK_MAX, LANDLOCK_MIN, landlock_version};
use super::worker_frames::{read_frame, write_frame};
use super::{helper, kernel, seccomp};

/// The file that states the size of a process's address space.
const STATUS_FILE: &str = "/proc/self/status";
/// The size of the address space that is assumed for a worker process that cannot read its own
/// size, in bytes.
const START_BYTES: u64 = 512 << 20;

/// The limits of a worker process, which only answers requests.
#[derive(Debug, Clone, Copy)]
pub struct WorkerProcessLimits {
    /// The memory that the worker may allocate after its start, in bytes.
    pub memory_bytes: u64,
    /// The processor time for one request, in seconds. The kernel kills a worker that needs more.
    pub request_seconds: u64,
    /// The longest request to the worker, in bytes.
    pub request_bytes_max: usize,
    /// The time without a request after which the worker exits.
    pub idle_timeout: Duration,
}

/// Runs a worker if this process was started as the worker `name`, and never returns in that case.
/// Call this in `main` before any thread starts. `answer` computes the answer to each request.
pub fn run_worker_if_asked(
    name: &str,
    limits: WorkerProcessLimits,
    answer: impl Fn(&[u8]) -> Vec<u8>,
) {
    if std::env::args_os().next().is_some_and(|argument| argument == name) {
        // The server is the only reader of the status, and knows the reason by other means.
        let status = if run_worker(limits, answer).is_ok() { 0 } else { 127 };
        exit(status);
    }
}

/// Drops the rights of this worker process, and reports to the server that it is ready. Then
/// answers requests until the server closes the connection or is silent for too long.
fn run_worker(limits: WorkerProcessLimits, answer: impl Fn(&[u8]) -> Vec<u8>) -> io::Result<()> {
    let line = helper::take_connection().ok_or(io::ErrorKind::NotConnected)?;
    let line = UnixStream::from(line);
    line.set_read_timeout(Some(limits.idle_timeout))?;
    // A file reads and writes with the calls that the filter allows.
    let mut line = File::from(OwnedFd::from(line));
    if let Err(err) = seal_process(limits.memory_bytes) {
        return write_frame(&mut line, err.to_string().as_bytes());
    }
    write_frame(&mut line, &[])?;
    loop {
        let request = match read_frame(&mut line, limits.request_bytes_max) {
            Ok(Some(request)) => request,
            Ok(None) => return Ok(()),
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(err) => return Err(err),
        };
        renew_processor_time(limits.request_seconds)?;
        write_frame(&mut line, &answer(&request))?;
    }
}

/// Drops this process's access to files, other processes and privileges, and limits further memory
/// to `memory_bytes`. This cannot be undone.
///
/// # Errors
/// A limit cannot be set, or this system has neither Landlock nor system call filters.
fn seal_process(memory_bytes: u64) -> io::Result<()> {
    let memory_max = address_space().unwrap_or(START_BYTES).saturating_add(memory_bytes);
    kernel::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0)?;
    kernel::drop_bounding_set()?;
    helper::drop_privileges()?;
    // On some kernels, dropping privileges clears this setting.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let files = deny_files();
    lower_limit(Resource::As, memory_max)?;
    lower_limit(Resource::Core, 0)?;
    lower_limit(Resource::Fsize, 0)?;
    lower_limit(Resource::Nproc, 0)?;
    // Open handles stay usable, but no other can be opened.
    lower_limit(Resource::Nofile, 0)?;
    let calls = seccomp::build_worker_filter()
        .and_then(|filter| seccompiler::apply_filter(&filter).map_err(io::Error::other));
    match (files, calls) {
        (Ok(()), _) | (_, Ok(())) => Ok(()),
        (Err(files), Err(calls)) => Err(io::Error::other(format!(
            "this system has neither Landlock ({files}) nor system call filters ({calls})"
        ))),
    }
}

/// Returns the size of this process's address space, in bytes. Returns `None` if the size cannot be
/// read.
fn address_space() -> Option<u64> {
    let status = std::fs::read_to_string(STATUS_FILE).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1 << 10)
}

/// Denies all access to files and networks (Landlock). Open handles stay usable.
fn deny_files() -> io::Result<()> {
    let version = landlock_version()?;
    if version < LANDLOCK_MIN {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let abi = ABI::from(version.min(LANDLOCK_MAX));
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(abi))
        .map_err(io::Error::other)?;
    if abi >= ABI::V4 {
        ruleset = ruleset.handle_access(AccessNet::from_all(abi)).map_err(io::Error::other)?;
    }
    if abi >= ABI::V6 {
        ruleset = ruleset.scope(Scope::from_all(abi)).map_err(io::Error::other)?;
    }
    let ruleset = ruleset.create().map_err(io::Error::other)?;
    match ruleset.restrict_self().map_err(io::Error::other)?.ruleset {
        RulesetStatus::FullyEnforced => Ok(()),
        RulesetStatus::PartiallyEnforced | RulesetStatus::NotEnforced => {
            Err(io::ErrorKind::Unsupported.into())
        }
    }
}

/// Lowers the soft and the hard limit of `resource` for this process to at most `most`,
/// permanently.
fn lower_limit(resource: Resource, most: u64) -> io::Result<()> {
    let most = getrlimit(resource).maximum.map_or(most, |now| now.min(most));
    Ok(setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?)
}

/// Raises this process's limit of processor time to at least `seconds` more than the time used so
/// far.
fn renew_processor_time(seconds: u64) -> io::Result<()> {
    let used = u64::try_from(clock_gettime(ClockId::ProcessCPUTime).tv_sec).unwrap_or_default();
    let maximum = getrlimit(Resource::Cpu).maximum;
    // The kernel counts whole seconds, of which the current one may be almost over.
    let granted = used.saturating_add(seconds).saturating_add(1);
    let current = Some(maximum.map_or(granted, |most| most.min(granted)));
    Ok(setrlimit(Resource::Cpu, Rlimit { current, maximum })?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::thread;

    use super::*;

    #[test]
    fn a_thread_with_the_filter_of_a_worker_opens_no_file_but_has_memory() {
        let done = thread::spawn(|| {
            let filter = seccomp::build_worker_filter().unwrap();
            if let Err(why) = seccompiler::apply_filter(&filter) {
                return eprintln!("NOT TRIED: {why}");
            }
            assert!(fs::read("/proc/self/status").is_err());
            assert!(UnixStream::pair().is_err());
            let memory = vec![7_u8; 64 << 20];
            assert_eq!(memory[memory.len() - 1], 7);
        });
        done.join().unwrap();
    }

    #[test]
    fn the_size_of_the_address_space_is_known() {
        assert!(address_space().unwrap() > 1 << 20);
    }
}
