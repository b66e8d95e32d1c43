//! Control groups, which limit all processes of a run together, if this system allows creating
//! them.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Pid;

use super::plan::OsStringBytes;

/// The name prefix of the control groups that a server creates.
const GROUP_PREFIX: &str = "toolgate-";

/// The existing control groups in which the server creates a new group for each run.
#[derive(Debug, Clone)]
pub(super) struct CgroupParents {
    all: Vec<CgroupParent>,
    /// The inode number of this server's PID namespace.
    namespace: u64,
    /// A random number that distinguishes this server's control groups from those of an earlier
    /// server with the same process ID.
    server_id: u64,
}

/// The age at which an empty control group from another PID namespace is removed. This server
/// cannot find out if the other server is running, and a new group is briefly empty.
const ABANDONED_AFTER: Duration = Duration::from_secs(600);

/// An existing control group in which the server creates a new group for each run.
#[derive(Debug, Clone)]
struct CgroupParent {
    folder: PathBuf,
    /// The limit files of a new control group, and the value to write into each file.
    limits: Vec<(&'static str, String)>,
}

/// The file that lists the processes of a control group. A process that is written to it joins the
/// group.
const PROCESSES_FILE: &str = "cgroup.procs";

/// The control groups of a sandbox helper and the programs that it starts. Dropping the set removes
/// the groups.
pub(crate) struct RunCgroups(Vec<PathBuf>);

/// The limits that control groups enforce on one run of a program.
#[derive(Debug, Clone, Copy)]
pub(super) struct CgroupLimits {
    pub(super) memory_bytes: u64,
    pub(super) processes: u64,
    /// The processor limit, in percent of one processor. 0 means unlimited.
    pub(super) cpu_percent: u64,
}

/// The period of the processor quota of a control group, in microseconds.
const QUOTA_PERIOD_US: u64 = 100_000;

impl CgroupParents {
    /// Finds the existing control groups in which this server can create groups with the limits
    /// `room`.
    ///
    /// # Errors
    /// The reason why this server cannot create control groups.
    pub(super) fn find(room: CgroupLimits) -> Result<Self, String> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let processes = ("pids.max", room.processes.to_string());
        let memory = room.memory_bytes.to_string();
        // A quarter of the server's share if the processors are busy.
        let mut shares = vec![("cpu.shares", "256".to_owned())];
        let mut weight = vec![("cpu.weight", "25".to_owned())];
        if room.cpu_percent > 0 {
            let quota = QUOTA_PERIOD_US / 100 * room.cpu_percent;
            shares.push(("cpu.cfs_quota_us", quota.to_string()));
            weight.push(("cpu.max", format!("{quota} {QUOTA_PERIOD_US}")));
        }
        let mut parents = Vec::new();
        for (controller, bounds) in [
            ("pids", vec![processes.clone()]),
            ("memory", vec![("memory.limit_in_bytes", memory.clone())]),
            ("cpu", shares),
        ] {
            if let Some(folder) = own_v1_group(&mounts, &own, controller) {
                parents.push(CgroupParent { folder, limits: bounds });
            }
        }
        if parents.is_empty() {
            let unified = own_v2_group(&mounts, &own).ok_or("no control groups are mounted")?;
            let given = unified.join("cgroup.subtree_control");
            let given = fs::read_to_string(given).unwrap_or_default();
            let given: Vec<_> = given.split_whitespace().collect();
            let mut bounds = Vec::new();
            if given.contains(&"pids") {
                bounds.push(processes);
            }
            if given.contains(&"memory") {
                bounds.push(("memory.max", memory));
            }
            if given.contains(&"cpu") {
                bounds.extend(weight);
            }
            if bounds.is_empty() {
                return Err("the server's control group delegates no controllers".to_owned());
            }
            parents.push(CgroupParent { folder: unified, limits: bounds });
        }
        let namespace = fs::metadata("/proc/self/ns/pid").map_err(|err| err.to_string())?.ino();
        let own = getrandom::u64().map_err(|err| err.to_string())?;
        let parents = Self { all: parents, namespace, server_id: own };
        parents.sweep();
        // Only a trial shows that a group can be created.
        parents.create_groups().map_err(|err| format!("cannot create a control group: {err}"))?;
        let needed = [("pids.max", "processes"), ("memory.", "memory"), ("cpu.", "processor time")];
        // The low priority is a courtesy, but a configured quota is required.
        let needed = needed.iter().filter(|(file, _)| *file != "cpu." || room.cpu_percent > 0);
        match needed.into_iter().find(|(file, _)| !parents.has_limit(file)) {
            None => Ok(parents),
            Some((_, what)) => Err(format!("control groups cannot limit {what} here")),
        }
    }

    fn has_limit(&self, name: &str) -> bool {
        self.all.iter().flat_map(|parent| &parent.limits).any(|(file, _)| file.starts_with(name))
    }

    /// Creates control groups for a sandbox helper and the programs that it starts.
    pub(super) fn create_groups(&self) -> io::Result<RunCgroups> {
        static RUNS: AtomicU64 = AtomicU64::new(0);
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        let name = format!(
            "{GROUP_PREFIX}{}-{:x}-{run}-{:x}",
            process::id(),
            self.namespace,
            self.server_id
        );
        let mut groups = RunCgroups(Vec::with_capacity(self.all.len()));
        for CgroupParent { folder, limits: bounds } in &self.all {
            let group = folder.join(&name);
            fs::create_dir(&group)?;
            groups.0.push(group.clone());
            for (file, bound) in bounds {
                fs::write(group.join(file), bound)?;
            }
        }
        Ok(groups)
    }

    /// Removes the control groups that killed servers left. Only groups without processes can be
    /// removed.
    fn sweep(&self) {
        for CgroupParent { folder, .. } in &self.all {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                if entry.file_name().to_str().is_some_and(|name| self.is_abandoned(name, &entry)) {
                    let _ = fs::remove_dir(entry.path());
                }
            }
        }
    }

    /// Returns `true` if `entry` with this `name` is the control group of a server that has ended.
    fn is_abandoned(&self, name: &str, entry: &fs::DirEntry) -> bool {
        let Some((server, rest)) =
            name.strip_prefix(GROUP_PREFIX).and_then(|it| it.split_once('-'))
        else {
            return false;
        };
        let namespace = rest.split('-').next().and_then(|it| u64::from_str_radix(it, 16).ok());
        if namespace == Some(self.namespace) {
            return !Path::new("/proc").join(server).exists();
        }
        let made = entry.metadata().and_then(|meta| meta.modified());
        made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > ABANDONED_AFTER))
    }
}

impl RunCgroups {
    /// Returns the files to which a process writes to join the control groups.
    pub(super) fn join_files(&self) -> Vec<OsStringBytes> {
        self.0.iter().map(|group| group.join(PROCESSES_FILE).into()).collect()
    }

    /// Returns `true` if the control groups contain no processes except `only`.
    pub(super) fn contain_only(&self, only: &[Pid]) -> bool {
        let is_known = |pid: &str| only.iter().any(|it| pid.parse() == Ok(it.as_raw_pid()));
        // No process can leave a single one of the groups, so checking the first is enough.
        self.0.first().is_none_or(|group| {
            fs::read_to_string(group.join(PROCESSES_FILE))
                .is_ok_and(|pids| pids.lines().all(is_known))
        })
    }
}

impl Drop for RunCgroups {
    fn drop(&mut self) {
        for group in &self.0 {
            // The kernel may need a moment after the last process was reaped.
            for _ in 0..100 {
                match fs::remove_dir(group) {
                    Err(err) if err.kind() == io::ErrorKind::ResourceBusy => {
                        thread::sleep(Duration::from_millis(1));
                    }
                    // The next server removes the rest.
                    Ok(()) | Err(_) => break,
                }
            }
        }
    }
}

/// Returns the server's own control group for `controller` (cgroup v1), if there is one. `mounts`
/// is the content of `/proc/self/mountinfo`, and `own` that of `/proc/self/cgroup`.
fn own_v1_group(mounts: &str, own: &str, controller: &str) -> Option<PathBuf> {
    let is_it = |options: &str| options.split(',').any(|option| option == controller);
    let own = own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        parts.next().filter(|names| is_it(names))?;
        parts.next()
    })?;
    group_path(mounts, own, |kind, options| kind == "cgroup" && is_it(options))
}

/// Returns the server's own control group (cgroup v2), if there is one. `mounts` is the content of
/// `/proc/self/mountinfo`, and `own` that of `/proc/self/cgroup`.
fn own_v2_group(mounts: &str, own: &str) -> Option<PathBuf> {
    let own = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    group_path(mounts, own, |kind, _| kind == "cgroup2")
}

/// Returns the path of the control group `own` below the first mount in `mounts` for whose type and
/// options `is_meant` returns `true`.
fn group_path(mounts: &str, own: &str, is_meant: impl Fn(&str, &str) -> bool) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (place, file_system) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let root = place.next()?;
        let at = place.next()?;
        let mut file_system = file_system.split(' ');
        let kind = file_system.next()?;
        let options = file_system.nth(1)?;
        let rest = Path::new(own).strip_prefix(root).ok()?;
        is_meant(kind, options).then(|| Path::new(at).join(rest))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
25 20 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw
26 25 0:23 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
27 25 0:24 /docker/a /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
28 25 0:25 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    const OWN: &str = "5:memory:/docker/a/b\n4:pids:/\n1:name=systemd:/\n0::/user.slice\n";

    #[test]
    fn groups_of_a_dead_server_are_removed_and_recent_ones_of_another_namespace_stay() {
        let folder = tempfile::tempdir().unwrap();
        let all = vec![CgroupParent { folder: folder.path().to_owned(), limits: Vec::new() }];
        let parents = CgroupParents { all, namespace: 0xA1, server_id: 1 };
        let living = format!("toolgate-{}-a1-0-1", process::id());
        // No process has that number.
        for name in ["toolgate-4194999-a1-0-1", "toolgate-4194999-b2-0-1", &living, "toolgate-x"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let old = fs::File::open(folder.path().join("toolgate-x")).unwrap();
        old.set_modified(std::time::SystemTime::now() - 2 * ABANDONED_AFTER).unwrap();
        fs::create_dir(folder.path().join("toolgate-7-c3-0-1")).unwrap();
        let old = fs::File::open(folder.path().join("toolgate-7-c3-0-1")).unwrap();
        old.set_modified(std::time::SystemTime::now() - 2 * ABANDONED_AFTER).unwrap();
        parents.sweep();
        let mut left: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|it| it.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        let mut expected =
            vec![living, "toolgate-4194999-b2-0-1".to_owned(), "toolgate-x".to_owned()];
        expected.sort();
        assert_eq!(left, expected);
    }

    #[test]
    fn the_servers_own_group_is_found_in_each_kind_of_mount() {
        let found = |controller| own_v1_group(MOUNTS, OWN, controller);
        assert_eq!(found("pids"), Some("/sys/fs/cgroup/pids/".into()));
        assert_eq!(found("memory"), Some("/sys/fs/cgroup/memory/b".into()));
        assert_eq!(found("cpu"), None);
        assert_eq!(own_v2_group(MOUNTS, OWN), Some("/sys/fs/cgroup/unified/user.slice".into()));
    }
}
