//! From what a tool wants to run to what the helper is told.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::read;
use rustix::pipe::{PipeFlags, pipe_with};

use super::held::{Held, Unheld};
use super::plan::{Becoming, Bytes, Plan};
use super::reserved::Reservation;
use super::settings::Require;
use super::standby::{Idle, Likeness, Standby, Task, is_gone};
use super::view::{Wanted, expanded};
use super::ways::{Folder, Variables, Ways};
use super::{Inside, Sandbox, held, layers};
use crate::world::Root;
use crate::world::processes::{Child, Image, Program, Tag};

/// A program to be confined.
pub(in crate::world) struct Start {
    pub(in crate::world) program: Program,
    pub(in crate::world) args: Vec<OsString>,
    pub(in crate::world) cwd: OwnedFd,
    pub(in crate::world) env: BTreeMap<OsString, OsString>,
    pub(in crate::world) is_fed: bool,
    pub(in crate::world) grace: Duration,
    /// What all its processes bear.
    pub(in crate::world) tag: Tag,
}

/// What is held for a program while it runs.
pub(in crate::world) struct Around {
    /// Where the helper says why the program did not begin.
    birth: OwnedFd,
    /// Where it says how the program ended, which its own process does not.
    end: OwnedFd,
    /// How it is confined.
    pub(in crate::world) held: Arc<Held>,
    /// Whether another process stays beside it, and hears signals for all it starts.
    pub(in crate::world) is_apart: bool,
    helper: Option<Standby>,
    like: Likeness,
    idle: Idle,
    is_over: bool,
    _reserved: Option<Reservation>,
}

impl Around {
    /// How the program ended, of which nothing is left, and whose process ended as `status` says.
    pub(in crate::world) fn ended(&mut self, status: ExitStatus) -> ExitStatus {
        let mut told = [0; 4];
        let is_told = poll(&mut [PollFd::new(&self.end, PollFlags::IN)], Some(&layers::AT_ONCE));
        match is_told.and_then(|_| read(&self.end, &mut told)) {
            Ok(4) => {
                self.is_over = true;
                ExitStatus::from_raw(i32::from_ne_bytes(told))
            }
            // It was killed, could not begin, or was that process.
            Ok(_) | Err(_) => {
                self.is_over = !self.is_apart;
                status
            }
        }
    }

    /// Why the program did not begin, once it has ended.
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
    /// Starts `start` confined, by a helper that is started by `begin` where none stands by.
    /// Blocks.
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
        let folder = Folder::of(&inside.workspace, start.cwd.as_fd())?;
        let (birth, their_birth) = pipe_with(PipeFlags::CLOEXEC)?;
        let (end, their_end) = pipe_with(PipeFlags::CLOEXEC)?;
        let workspace = folder.workspace.try_clone()?;
        let reserved = match wanted.reserves() && ways.layers.spaces.is_some() {
            true => Some(self.reserve(ways, &folder)?),
            false => None,
        };
        let is_fed = start.is_fed;
        let mut plan = ways.plan(&ways.layers, &wanted, folder);
        plan.runs = inside.runs.as_ref().map(|runs| runs.iter().map(Bytes::from).collect());
        plan.grace_ms = u64::try_from(start.grace.as_millis()).unwrap_or(u64::MAX);
        plan.tag = Some(start.tag.number());
        plan.program = Some(becoming(start));
        let is_apart = plan.spaces.is_some();
        let sealed = plan.seal()?;
        let plan = Plan { program: None, ..plan };
        let (spaces, view) = (plan.spaces, plan.view.clone());
        let like = Likeness { workspace: plan.workspace.clone(), spaces, view };
        let task = Task { plan: sealed, birth: their_birth, end: their_end, workspace, is_fed };
        let (helper, child) = self.begun(ways, &task, plan, &like, begin)?;
        let (held, idle) = (Arc::new(held), self.0.idle.clone());
        let (helper, is_over, _reserved) = (Some(helper), false, reserved);
        let around = Around { birth, end, held, is_apart, helper, like, idle, is_over, _reserved };
        Ok((child, around))
    }

    /// The process that does `task`, and the helper that has made it.
    fn begun(
        &self,
        ways: &Ways,
        task: &Task,
        plan: Plan,
        like: &Likeness,
        begin: impl Fn(Image) -> io::Result<Child>,
    ) -> io::Result<(Standby, Child)> {
        while let Some(mut helper) = self.0.idle.take(like) {
            match helper.order(task) {
                // Somebody has ended it, or it had other things ready; another does as well.
                Err(err) if is_gone(&err) => {}
                begun => return Ok((helper, begun?.map_err(held::refused)?)),
            }
        }
        // What all see may be another by the time it is asked for: then the second fits.
        let mut first = Standby::begin(ways.groups(&ways.layers)?, plan.clone(), task, &begin)?;
        match first.order(task) {
            Err(err) if is_gone(&err) => drop(first),
            begun => return Ok((first, begun?.map_err(held::refused)?)),
        }
        let mut helper = Standby::begin(ways.groups(&ways.layers)?, plan, task, &begin)?;
        let child = helper.order(task)?.map_err(held::refused)?;
        Ok((helper, child))
    }

    /// What this system has, tried out once.
    pub(super) fn ways(&self, workspace: &Root, variables: &Variables) -> io::Result<&Ways> {
        let ways = self.0.ways.get_or_init(|| {
            self.look(workspace, variables)
                .map_err(|err| format!("programs cannot be confined here: {err}"))
        });
        ways.as_ref().map_err(|why| io::Error::other(why.clone()))
    }

    fn look(&self, workspace: &Root, variables: &Variables) -> io::Result<Ways> {
        let outside = self.0.outside.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let (settings, beside) = (self.0.settings.clone(), self.0.beside.clone());
        let (workspace, variables) = (workspace.clone(), variables.clone());
        outside.run(move || Ways::find(&settings, &beside, &workspace, &variables))?
    }

    /// Whether a program confined as `inside` sees the file that is called `named`.
    ///
    /// # Errors
    /// When nothing can be confined here.
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

    /// Whether programs in `workspace`, of a server whose home is `home`, write the folder `at`, as
    /// it is named or where it lies.
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
