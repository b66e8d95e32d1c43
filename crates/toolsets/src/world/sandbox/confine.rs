//! Turns a request to run a program into an order for a sandbox helper.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use rustix::pipe::{PipeFlags, pipe_with};

use super::ending::Ending;
use super::held::{Held, Unheld};
use super::plan::{Becoming, Bytes, Errand, seal};
use super::reserved::Reservation;
use super::settings::Require;
use super::standby::{Idle, Likeness, Standby, Task, is_gone};
use super::view::{Wanted, expanded};
use super::ways::{Folder, Variables, Ways};
use super::{Inside, Sandbox, held, layers};
use crate::world::Root;
use crate::world::processes::{Child, Image, Program, Tag};

/// A program to confine.
pub(in crate::world) struct Start {
    pub(in crate::world) program: Program,
    pub(in crate::world) args: Vec<OsString>,
    pub(in crate::world) cwd: OwnedFd,
    pub(in crate::world) env: BTreeMap<OsString, OsString>,
    pub(in crate::world) is_fed: bool,
    pub(in crate::world) grace: Duration,
    /// The tag that all its processes carry.
    pub(in crate::world) tag: Tag,
}

/// The resources of a confined program while it runs.
pub(in crate::world) struct Around {
    /// The pipe on which the helper reports why the program did not start.
    birth: OwnedFd,
    /// The pipe on which the reaper reports the exit, if the program has one beside it.
    end: Option<Ending>,
    /// The layers in force.
    pub(in crate::world) held: Arc<Held>,
    helper: Option<Standby>,
    like: Likeness,
    idle: Idle,
    is_over: bool,
    _reserved: Option<Reservation>,
}

impl Around {
    /// Returns `true` if a reaper runs beside the program. It forwards signals to all of the
    /// program's processes.
    pub(in crate::world) fn is_apart(&self) -> bool {
        self.end.is_some()
    }

    /// Waits until the reaper reports that no process is left. Never completes without a reaper.
    pub(in crate::world) async fn over(&self) -> io::Result<()> {
        match &self.end {
            Some(end) => end.over().await,
            None => std::future::pending().await,
        }
    }

    /// Returns the program's exit status once the reaper has reported that no process is left.
    pub(in crate::world) fn told(&self) -> Option<ExitStatus> {
        let end = self.end.as_ref()?;
        end.status().filter(|_| end.is_over())
    }

    /// Returns the program's exit status after its end. `status` is the status of its main process.
    pub(in crate::world) fn ended(&mut self, status: ExitStatus) -> ExitStatus {
        let told = self.end.as_ref().and_then(Ending::status);
        // Without a report, the reaper was killed or could not start.
        self.is_over = told.is_some() || !self.is_apart();
        told.unwrap_or(status)
    }

    /// Returns the error that kept the program from starting. Call it after the program has ended.
    pub(in crate::world) fn failure(&self) -> Option<io::Error> {
        let failed = layers::heard(&self.birth, Some(&layers::AT_ONCE)).ok()??;
        Some(held::refused(failed))
    }
}

impl Drop for Around {
    fn drop(&mut self) {
        if let Some(helper) = self.helper.take()
            && self.is_over
        {
            self.idle.give_back(helper, self.like.clone());
        }
    }
}

impl Sandbox {
    /// Starts `start` confined. Calls `begin` to start a helper if no idle one fits. Blocks.
    pub(in crate::world) fn confine(
        &self,
        inside: &Inside,
        start: Start,
        variables: &Variables,
        begin: impl Fn(Image) -> io::Result<Child>,
    ) -> io::Result<(Child, Around)> {
        let ways = self.ways(&inside.workspace, variables)?;
        let held = ways.held(inside.profile);
        let wanted = Wanted::of(inside);
        if self.0.settings.require == Require::Strict && !held.is_whole() {
            return Err(io::Error::other(Unheld(held)));
        }
        let folder = Folder::of(&inside.workspace, start.cwd.as_fd(), &inside.seen)?;
        let (birth, their_birth) = pipe_with(PipeFlags::CLOEXEC)?;
        let (end, their_end) = Ending::line()?;
        let workspace = folder.workspace.try_clone()?;
        let reserved = match ways.base.reserves(&wanted) && ways.layers.spaces.is_some() {
            true => Some(self.reserve(ways, &folder)?),
            false => None,
        };
        let is_fed = start.is_fed;
        let errand = Errand {
            runs: inside.runs.as_ref().map(|runs| runs.iter().map(Bytes::from).collect()),
            grace_ms: u64::try_from(start.grace.as_millis()).unwrap_or(u64::MAX),
            tag: Some(start.tag.number()),
            program: Some(becoming(start)),
            ..folder.errand()
        };
        let plan = ways.plan(&ways.layers, &wanted, folder);
        let is_apart = plan.spaces.is_some();
        let errand = seal(&errand)?;
        let task = Task { errand, birth: their_birth, end: their_end, workspace, is_fed };
        let like = Likeness::of(plan);
        let (helper, child) = self.begun(ways, &task, &like, begin)?;
        // A process that becomes the program itself sends no reports.
        let end = is_apart.then_some(end);
        let held = Arc::new(held);
        let idle = self.0.idle.clone();
        let helper = Some(helper);
        let _reserved = reserved;
        Ok((child, Around { birth, end, held, helper, like, idle, is_over: false, _reserved }))
    }

    /// Lets an idle or a new helper run `task`. Returns the helper and the program's process.
    fn begun(
        &self,
        ways: &Ways,
        task: &Task,
        like: &Likeness,
        begin: impl Fn(Image) -> io::Result<Child>,
    ) -> io::Result<(Standby, Child)> {
        while let Some(mut helper) = self.0.idle.take(like) {
            match helper.order(task) {
                Ok(Ok(child)) => return Ok((helper, child)),
                // Its preparation may have failed because the last program still used resources. It
                // has started nothing, so another helper can take over.
                Ok(Err(_)) => {}
                // Somebody has killed the helper.
                Err(err) if is_gone(&err) => {}
                Err(err) => return Err(err),
            }
        }
        let mounts = self.0.idle.mounts();
        let groups = ways.groups(&ways.layers)?;
        let mut helper = Standby::begin(groups, mounts, like.plan.clone(), task, begin)?;
        let child = helper.order(task)?.map_err(held::refused)?;
        Ok((helper, child))
    }

    /// Returns the capabilities of this system, tested once.
    pub(super) fn ways(&self, workspace: &Root, variables: &Variables) -> io::Result<&Ways> {
        let ways = self.0.ways.get_or_init(|| {
            self.look(workspace, variables)
                .map_err(|err| format!("programs cannot be confined here: {err}"))
        });
        ways.as_ref().map_err(|why| io::Error::other(why.clone()))
    }

    fn look(&self, workspace: &Root, variables: &Variables) -> io::Result<Ways> {
        let outside = self.0.outside.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let idle = self.0.idle.clone();
        let settings = self.0.settings.clone();
        let beside = self.0.beside.clone();
        let workspace = workspace.clone();
        let variables = variables.clone();
        outside.run(move || {
            idle.watch_mounts();
            Ways::find(&settings, &beside, &workspace, &variables)
        })?
    }

    /// Returns `true` if a program confined by `inside` sees the file at `named`.
    ///
    /// # Errors
    /// If nothing can be confined on this system.
    pub(crate) fn shows(
        &self,
        inside: &Inside,
        named: &Path,
        variables: &Variables,
    ) -> io::Result<bool> {
        let ways = self.ways(&inside.workspace, variables)?;
        let Ok(real) = fs::canonicalize(named) else { return Ok(false) };
        let workspace = inside.workspace.path();
        Ok(ways.base.shows(workspace, &Wanted::of(inside), named, &real))
    }

    /// Returns `true` if confined programs in `workspace` may write to the folder `at`, by its own
    /// path or its real path. `home` is the server's home folder.
    pub(in crate::world) fn writes(
        &self,
        workspace: &Root,
        home: Option<&Path>,
        at: &Path,
    ) -> bool {
        let real = fs::canonicalize(at);
        let ats = [Some(at), real.as_deref().ok()];
        let written = self.0.settings.write.iter().map(|path| expanded(path, home));
        let mut written = written.chain([workspace.path().to_owned()]);
        written.any(|it| ats.iter().flatten().any(|at| at.starts_with(&it)))
    }

    fn reserve(&self, ways: &Ways, folder: &Folder) -> io::Result<Reservation> {
        let workspace = folder.workspace.try_clone()?;
        Ok(self.0.reserved.take(workspace, folder.workspace_identity, ways.base.reserved()))
    }
}

fn becoming(start: Start) -> Becoming {
    let Start { program, args, cwd: _, env, is_fed, grace: _, tag: _ } = start;
    let env = env.into_iter().map(|(mut name, value)| {
        name.push("=");
        name.push(value);
        Bytes::from(name)
    });
    Becoming {
        path: program.path.into(),
        identity: program.identity,
        args: std::iter::once(program.name.into())
            .chain(args.into_iter().map(Bytes::from))
            .collect(),
        env: env.collect(),
        is_fed,
    }
}
