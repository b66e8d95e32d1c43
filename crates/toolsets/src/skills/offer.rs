//! Serves skills: lists them, and reads their files as resources.

use std::collections::BTreeMap;
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use toolgate_contract::{
    BoxFuture, Change, Changes, Claim, Completing, Contents, Ctx, Effects, Fault, Hold,
    ResourceSpec, ResourceTemplate, Resources, Skill, Skills, ToolError, ToolId, ToolSpec,
};

use super::entry::{Entry, From, Known, Part};
use super::{BYTES_MAX, SCHEME, SKILL_FILE, Settings, gather};
use crate::front_matter::LeftOut;
use crate::looked::Looked;
use crate::world::Root;
use crate::{icons, places};

/// The media type of a folder.
const FOLDER: &str = "inode/directory";

/// Source of the skills of a workspace. Each request rereads the files that changed.
pub struct Shelf {
    looked: Arc<Looked<Arc<Known>, Vec<Entry>>>,
    folders: Vec<String>,
    guard: ToolSpec,
}

impl Shelf {
    /// Creates the source of the skills that `settings` enable, for the workspace `root`. `None` if
    /// they enable none.
    pub fn new(root: &Root, settings: &Settings) -> Option<Arc<Self>> {
        let Settings { enabled, shipped, folders } = settings.clone();
        if !enabled || (folders.is_empty() && !shipped) {
            return None;
        }
        let sought = folders.clone();
        let looked = Looked::new(root, move |root, memory, watch| {
            gather::look(root, &sought, shipped, memory, watch)
        });
        Some(Arc::new(Self { looked, folders, guard: guard() }))
    }

    async fn now(&self, ctx: &Ctx) -> Result<Arc<Vec<Entry>>, ToolError> {
        self.looked.now(ctx).await
    }

    /// Checks whether `uri` belongs to a skill, valid or not, that the last search found.
    fn has(&self, uri: &str) -> bool {
        let Some(path) = path_of(uri) else { return false };
        let path = percent_decode_str(path).decode_utf8_lossy();
        let place = format!("{}/", path.trim_end_matches('/'));
        let is_of = |entry: &Entry| {
            // The place is a file or folder of the skill, or a folder that contains the skill.
            let rest = place.strip_prefix(entry.path.as_str());
            let is_in = rest.is_some_and(|rest| rest.starts_with('/'));
            is_in || entry.path.starts_with(&place) || place == "/"
        };
        let last = self.looked.last();
        let place = format!("{SCHEME}{path}");
        last.is_some_and(|all| all.iter().any(is_of)) || self.trouble(&place).is_some()
    }

    async fn contents(&self, ctx: &Ctx, uri: &str) -> Result<Vec<Contents>, ToolError> {
        // A file from the last search is as good as from a new one, because its content is read
        // now.
        let known = self.looked.last().and_then(|last| find(&last, uri).map(|(_, part)| part));
        if let Some(part) = known
            && let Ok(contents) = self.read_part(ctx, part).await
        {
            return Ok(vec![contents]);
        }
        let now = self.now(ctx).await?;
        let (_, part) = find(&now, uri).ok_or_else(|| {
            let absent = || format!("no skill has a file at `{uri}`");
            ToolError::not_found(self.trouble(uri).unwrap_or_else(absent))
        })?;
        Ok(vec![self.read_part(ctx, part).await?])
    }

    async fn read_part(&self, ctx: &Ctx, part: Part) -> Result<Contents, ToolError> {
        let at = match &part.from {
            From::Program(text) => return Ok(part.contents(text.as_bytes().to_vec())),
            From::Workspace(at) => at.clone(),
        };
        let read = move |root: &Root, watch: &_| {
            let file = root.open_walked(&at)?;
            let size = file.meta().size();
            if size > BYTES_MAX {
                let message = format!("`{}` has {size} bytes; at most {BYTES_MAX}", part.uri);
                return Err(ToolError::new(Fault::TooLarge, message));
            }
            Ok(part.contents(file.read(0, size, watch)?))
        };
        self.looked.root().work(ctx, read).await
    }
}

impl Skills for Shelf {
    fn guard(&self) -> Option<&ToolSpec> {
        Some(&self.guard)
    }

    fn claims(&self, uri: &str) -> Option<Claim> {
        Resources::claims(self, uri)
    }

    fn all<'a>(&'a self, ctx: &'a Ctx) -> BoxFuture<'a, Result<Vec<Skill>, ToolError>> {
        Box::pin(async { Ok(self.now(ctx).await?.iter().map(Entry::skill).collect()) })
    }

    fn get<'a>(
        &'a self,
        ctx: &'a Ctx,
        uri: &'a str,
    ) -> BoxFuture<'a, Result<Option<Skill>, ToolError>> {
        Box::pin(async move {
            let now = self.now(ctx).await?;
            Ok(now.iter().find(|entry| entry.uri() == uri).map(Entry::skill))
        })
    }

    fn trouble(&self, uri: &str) -> Option<String> {
        let path = percent_decode_str(uri.strip_prefix(SCHEME)?).decode_utf8().ok()?;
        let places = self.folders.iter().map(|top| format!("{}/{path}", top.trim_end_matches('/')));
        let places: Vec<String> = places.collect();
        self.looked.trouble(|left_out| places.iter().any(|place| is_of(left_out, place)))
    }
}

impl Resources for Shelf {
    fn guard(&self) -> &ToolSpec {
        &self.guard
    }

    fn owns(&self, uri: &str) -> bool {
        path_of(uri).is_some()
    }

    /// Claims the URI only if a skill has it, because other sources may have skills too.
    fn claims(&self, uri: &str) -> Option<Claim> {
        let claim = || if self.has(uri) { Claim::Listed } else { Claim::Absent };
        self.owns(uri).then(claim)
    }

    fn look<'a>(&'a self, ctx: &'a Ctx) -> BoxFuture<'a, Result<(), ToolError>> {
        Box::pin(async { self.now(ctx).await.map(drop) })
    }

    /// Lists only the `SKILL.md` of each skill. It refers to the other files, as does the skill's
    /// own list.
    fn list<'a>(
        &'a self,
        ctx: &'a Ctx,
        after: Option<&'a str>,
        at_most: usize,
    ) -> BoxFuture<'a, Result<Vec<ResourceSpec>, ToolError>> {
        Box::pin(async move {
            let now = self.now(ctx).await?;
            let specs = now.iter().filter_map(|entry| {
                let uri = entry.uri();
                let part = entry.files.iter().find(|part| part.uri == uri)?;
                Some(entry.resource(part))
            });
            Ok(places::page(specs, after, at_most))
        })
    }

    fn templates(&self) -> Vec<ResourceTemplate> {
        vec![ResourceTemplate {
            uri: format!("{SCHEME}{{+path}}"),
            name: "skill-file".to_owned(),
            title: Some("File of a skill".to_owned()),
            about: Some("A file of a skill: its SKILL.md, or what that refers to.".to_owned()),
            media_type: None,
            icons: icons::of("skills"),
            ..ResourceTemplate::default()
        }]
    }

    fn read<'a>(
        &'a self,
        ctx: &'a Ctx,
        uri: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Contents>, ToolError>> {
        Box::pin(self.contents(ctx, uri))
    }

    fn complete<'a>(
        &'a self,
        ctx: &'a Ctx,
        asked: &'a Completing,
    ) -> BoxFuture<'a, Result<Vec<String>, ToolError>> {
        Box::pin(async move {
            if asked.argument != "path" {
                return Ok(Vec::new());
            }
            let now = self.now(ctx).await?;
            let path = |part: &Part| part.uri[SCHEME.len()..].to_owned();
            Ok(now.iter().flat_map(|entry| &entry.files).map(path).collect())
        })
    }

    fn watch<'a>(
        &'a self,
        _ctx: &'a Ctx,
        _uri: &'a str,
        changes: &'a Changes,
    ) -> BoxFuture<'a, Result<Hold, ToolError>> {
        Box::pin(async { Ok(self.watch_list(changes)) })
    }

    fn watch_list(&self, changes: &Changes) -> Hold {
        let changes = changes.clone();
        self.looked.keep_looking(move |before, now| tell(before, now, &changes))
    }

    fn folder<'a>(
        &'a self,
        ctx: &'a Ctx,
        uri: &'a str,
        after: Option<&'a str>,
        at_most: usize,
    ) -> BoxFuture<'a, Result<Vec<ResourceSpec>, ToolError>> {
        Box::pin(async move {
            let now = self.now(ctx).await?;
            let children = children(&now, uri)?;
            Ok(places::page(children.into_values(), after, at_most))
        })
    }
}

/// Returns the path after the scheme, if `uri` is a skill's. The scheme ignores case (RFC 3986).
fn path_of(uri: &str) -> Option<&str> {
    let (scheme, path) = uri.split_at_checked(SCHEME.len())?;
    scheme.eq_ignore_ascii_case(SCHEME).then_some(path)
}

/// Checks whether `left_out` covers `place`: that file, a folder that contains it, or the skill
/// that it belongs to.
fn is_of(left_out: &LeftOut, place: &str) -> bool {
    let is_in = |folder: &str| place.strip_prefix(folder).is_some_and(|it| it.starts_with('/'));
    let file = left_out.file.as_str();
    let skill = file.strip_suffix(SKILL_FILE).and_then(|it| it.strip_suffix('/'));
    place == file || is_in(file) || skill.filter(|_| left_out.what.is_some()).is_some_and(is_in)
}

fn guard() -> ToolSpec {
    let id = ToolId::new("skills.read").unwrap_or_else(|| unreachable!("it is an id"));
    let about = "Reads a file of a skill.";
    let mut guard = ToolSpec::new(id, "Read skill", about, Effects::Reads);
    guard.idempotent = true;
    guard.icons = icons::of("skills");
    guard
}

/// Finds the file with the URI `uri` and its skill.
fn find<'e>(entries: &'e [Entry], uri: &str) -> Option<(&'e Entry, Part)> {
    entries.iter().find_map(|entry| {
        let at = entry.files.binary_search_by(|part| part.uri.as_str().cmp(uri)).ok()?;
        Some((entry, entry.files[at].clone()))
    })
}

/// Returns the direct children of the folder `uri`, by URI.
fn children(entries: &[Entry], uri: &str) -> Result<BTreeMap<String, ResourceSpec>, ToolError> {
    let prefix = match uri.trim_end_matches('/') {
        "skill:" => SCHEME.to_owned(),
        folder => format!("{folder}/"),
    };
    let mut children = BTreeMap::new();
    for (entry, part) in
        entries.iter().flat_map(|entry| entry.files.iter().map(move |it| (entry, it)))
    {
        let Some(rest) = part.uri.strip_prefix(&prefix) else { continue };
        let spec = match rest.split_once('/') {
            None => entry.resource(part),
            Some((name, _)) => {
                let decoded = percent_decode_str(name).decode_utf8_lossy();
                let mut spec = ResourceSpec::new(format!("{prefix}{name}"), decoded);
                spec.media_type = Some(FOLDER.to_owned());
                spec
            }
        };
        children.insert(spec.uri.clone(), spec);
    }
    if children.is_empty() && find(entries, uri).is_some() {
        return Err(ToolError::invalid("/uri", format!("`{uri}` is a file, no folder")));
    }
    if children.is_empty() && prefix != SCHEME {
        return Err(ToolError::not_found(format!("no skill has a folder at `{uri}`")));
    }
    Ok(children)
}

/// Reports the files that differ between `before` and `now` to `changes`.
fn tell(before: &[Entry], now: &[Entry], changes: &Changes) {
    let files = |entries: &[Entry]| -> BTreeMap<String, Arc<Known>> {
        let files = entries.iter().flat_map(|entry| &entry.files);
        files.map(|part| (part.uri.clone(), part.known.clone())).collect()
    };
    let before = files(before);
    let now = files(now);
    for (uri, known) in &before {
        if now.get(uri) != Some(known) {
            changes.tell(&Change::Resource(uri.as_str().into()));
        }
    }
    for uri in now.keys().filter(|uri| !before.contains_key(*uri)) {
        changes.tell(&Change::Resource(uri.as_str().into()));
    }
    changes.tell(&Change::Resources);
}
