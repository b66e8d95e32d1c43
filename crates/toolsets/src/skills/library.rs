//! Serves skills: lists them, and reads their files as resources.

use std::collections::BTreeMap;
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use toolgate_contract::{
    ChangeFeed, CompletionRequest, Effects, KeepActiveGuard, ResourceContents, ResourceSource,
    ResourceSpec, ResourceTemplate, ServerChange, Skill, SkillSource, ToolContext, ToolError,
    ToolErrorKind, ToolFuture, ToolId, ToolSpec, UriClaimStrength,
};

use super::entry::{OfferedSkill, OfferedSkillFile, SkillFileInfo, SkillFileOrigin};
use super::{BYTES_MAX, SCHEME, SKILL_FILE, SkillSettings, search};
use crate::front_matter::SkippedFile;
use crate::workspace_scan::WorkspaceScanner;
use crate::{icons, uri_paths};
use toolgate_world::Root;

/// The media type of a skill's folder as a resource.
const FOLDER_MEDIA_TYPE: &str = "inode/directory";

/// Source of the skills of a workspace. Each request rereads the files that changed.
pub struct SkillLibrary {
    scan: Arc<WorkspaceScanner<Arc<SkillFileInfo>, Vec<OfferedSkill>>>,
    folders: Vec<String>,
    guard: ToolSpec,
}

impl SkillLibrary {
    /// Creates the source of the built-in skill and of the skills in the folders of `settings`, for
    /// the workspace `root`. Returns `None` if skills are switched off.
    pub fn new(root: &Root, settings: &SkillSettings) -> Option<Arc<Self>> {
        let SkillSettings { folders, .. } = settings;
        (!folders.is_empty()).then(|| Self::open(root, folders, true))
    }

    /// Creates the source of the skills in `folders`. Adds the built-in skill if `has_built_in` is
    /// true.
    pub(super) fn open(root: &Root, folders: &[String], has_built_in: bool) -> Arc<Self> {
        let folders = folders.to_vec();
        let searched = folders.clone();
        let scan = WorkspaceScanner::new(root, move |root, memory, watch| {
            search::find_skills(root, &searched, has_built_in, memory, watch)
        });
        Arc::new(Self { scan, folders, guard: guard() })
    }

    async fn current(&self, ctx: &ToolContext) -> Result<Arc<Vec<OfferedSkill>>, ToolError> {
        self.scan.scan(ctx).await
    }

    /// Returns `true` if `uri` names a file or folder of a skill that the last search found, valid
    /// or not, or a folder that contains such a skill.
    fn has_uri(&self, uri: &str) -> bool {
        let Some(path) = path_in_uri(uri) else { return false };
        let path = percent_decode_str(path).decode_utf8_lossy();
        let place = format!("{}/", path.trim_end_matches('/'));
        let is_of = |entry: &OfferedSkill| {
            // The place is a file or folder of the skill, or a folder that contains the skill.
            let rest = place.strip_prefix(entry.path.as_str());
            let is_in = rest.is_some_and(|rest| rest.starts_with('/'));
            is_in || entry.path.starts_with(&place) || place == "/"
        };
        let last = self.scan.latest();
        let place = format!("{SCHEME}{path}");
        last.is_some_and(|all| all.iter().any(is_of)) || self.unusable_reason(&place).is_some()
    }

    async fn read_contents(
        &self,
        ctx: &ToolContext,
        uri: &str,
    ) -> Result<Vec<ResourceContents>, ToolError> {
        // A file from the last search is as good as from a new one, because its content is read
        // now.
        let known = self.scan.latest().and_then(|last| find_file(&last, uri).map(|(_, part)| part));
        if let Some(part) = known
            && let Ok(contents) = self.read_part(ctx, part).await
        {
            return Ok(vec![contents]);
        }
        let now = self.current(ctx).await?;
        let (_, part) = find_file(&now, uri).ok_or_else(|| {
            let missing = || format!("no skill has a file at `{uri}`");
            ToolError::not_found(self.unusable_reason(uri).unwrap_or_else(missing))
        })?;
        Ok(vec![self.read_part(ctx, part).await?])
    }

    async fn read_part(
        &self,
        ctx: &ToolContext,
        part: OfferedSkillFile,
    ) -> Result<ResourceContents, ToolError> {
        let at = match &part.origin {
            SkillFileOrigin::BuiltIn(text) => return Ok(part.contents(text.as_bytes().to_vec())),
            SkillFileOrigin::Workspace(at) => at.clone(),
        };
        let read = move |root: &Root, watch: &_| {
            let file = root.open_walked(&at)?;
            let size = file.meta().size();
            if size > BYTES_MAX {
                let message =
                    format!("`{}` has {size} bytes; at most {BYTES_MAX} can be read", part.uri);
                return Err(ToolError::new(ToolErrorKind::TooLarge, message));
            }
            Ok(part.contents(file.read(0, size, watch)?))
        };
        self.scan.root().run_blocking(ctx, read).await
    }
}

impl SkillSource for SkillLibrary {
    fn guard(&self) -> Option<&ToolSpec> {
        Some(&self.guard)
    }

    fn claim(&self, uri: &str) -> Option<UriClaimStrength> {
        ResourceSource::claim(self, uri)
    }

    fn all<'a>(&'a self, ctx: &'a ToolContext) -> ToolFuture<'a, Vec<Skill>> {
        Box::pin(async { Ok(self.current(ctx).await?.iter().map(OfferedSkill::skill).collect()) })
    }

    fn get<'a>(&'a self, ctx: &'a ToolContext, uri: &'a str) -> ToolFuture<'a, Option<Skill>> {
        Box::pin(async move {
            let now = self.current(ctx).await?;
            Ok(now.iter().find(|entry| entry.uri() == uri).map(OfferedSkill::skill))
        })
    }

    fn unusable_reason(&self, uri: &str) -> Option<String> {
        let path = percent_decode_str(uri.strip_prefix(SCHEME)?).decode_utf8().ok()?;
        let places = self.folders.iter().map(|top| format!("{}/{path}", top.trim_end_matches('/')));
        let places: Vec<String> = places.collect();
        self.scan
            .left_out_reason(|left_out| places.iter().any(|place| covers_place(left_out, place)))
    }
}

impl ResourceSource for SkillLibrary {
    fn guard(&self) -> &ToolSpec {
        &self.guard
    }

    fn owns(&self, uri: &str) -> bool {
        path_in_uri(uri).is_some()
    }

    /// Claims `uri` only if a skill has this URI, because other sources may also offer skills.
    fn claim(&self, uri: &str) -> Option<UriClaimStrength> {
        let claim =
            || if self.has_uri(uri) { UriClaimStrength::Listed } else { UriClaimStrength::Absent };
        self.owns(uri).then(claim)
    }

    fn refresh<'a>(&'a self, ctx: &'a ToolContext) -> ToolFuture<'a, ()> {
        Box::pin(async { self.current(ctx).await.map(drop) })
    }

    /// Lists only the `SKILL.md` of each skill. That file refers to the other files, and the
    /// skill's own list contains them.
    fn list<'a>(
        &'a self,
        ctx: &'a ToolContext,
        after: Option<&'a str>,
        at_most: usize,
    ) -> ToolFuture<'a, Vec<ResourceSpec>> {
        Box::pin(async move {
            let now = self.current(ctx).await?;
            let specs = now.iter().filter_map(|entry| {
                let uri = entry.uri();
                let part = entry.files.iter().find(|part| part.uri == uri)?;
                Some(entry.resource(part))
            });
            Ok(uri_paths::page_after(specs, after, at_most))
        })
    }

    fn templates(&self) -> Vec<ResourceTemplate> {
        vec![ResourceTemplate {
            uri: format!("{SCHEME}{{+path}}"),
            name: "skill-file".to_owned(),
            title: Some("File of a skill".to_owned()),
            description: Some(
                "A file of a skill: its SKILL.md, or a file that it refers to.".to_owned(),
            ),
            media_type: None,
            icons: icons::for_toolset("skills"),
            ..ResourceTemplate::default()
        }]
    }

    fn read<'a>(
        &'a self,
        ctx: &'a ToolContext,
        uri: &'a str,
    ) -> ToolFuture<'a, Vec<ResourceContents>> {
        Box::pin(self.read_contents(ctx, uri))
    }

    fn complete<'a>(
        &'a self,
        ctx: &'a ToolContext,
        request: &'a CompletionRequest,
    ) -> ToolFuture<'a, Vec<String>> {
        Box::pin(async move {
            if request.argument != "path" {
                return Ok(Vec::new());
            }
            let now = self.current(ctx).await?;
            let path = |part: &OfferedSkillFile| part.uri[SCHEME.len()..].to_owned();
            Ok(now.iter().flat_map(|entry| &entry.files).map(path).collect())
        })
    }

    fn watch<'a>(
        &'a self,
        _ctx: &'a ToolContext,
        _uri: &'a str,
        changes: &'a ChangeFeed,
    ) -> ToolFuture<'a, KeepActiveGuard> {
        Box::pin(async { Ok(self.watch_list(changes)) })
    }

    fn watch_list(&self, changes: &ChangeFeed) -> KeepActiveGuard {
        let changes = changes.clone();
        self.scan.subscribe(move |before, now| report_changes(before, now, &changes))
    }

    fn list_folder<'a>(
        &'a self,
        ctx: &'a ToolContext,
        uri: &'a str,
        after: Option<&'a str>,
        at_most: usize,
    ) -> ToolFuture<'a, Vec<ResourceSpec>> {
        Box::pin(async move {
            let now = self.current(ctx).await?;
            let children = children(&now, uri)?;
            Ok(uri_paths::page_after(children.into_values(), after, at_most))
        })
    }
}

/// Returns the path after `skill://` if `uri` has this scheme. Case is ignored in the scheme (RFC
/// 3986).
fn path_in_uri(uri: &str) -> Option<&str> {
    let (scheme, path) = uri.split_at_checked(SCHEME.len())?;
    scheme.eq_ignore_ascii_case(SCHEME).then_some(path)
}

/// Returns `true` if the skipped item `left_out` is the file at the path `place`, a folder that
/// contains this file, or the skill to which the file belongs.
fn covers_place(left_out: &SkippedFile, place: &str) -> bool {
    let is_in = |folder: &str| place.strip_prefix(folder).is_some_and(|it| it.starts_with('/'));
    let file = left_out.file.as_str();
    let skill = file.strip_suffix(SKILL_FILE).and_then(|it| it.strip_suffix('/'));
    place == file
        || is_in(file)
        || skill.filter(|_| left_out.item_kind.is_some()).is_some_and(is_in)
}

fn guard() -> ToolSpec {
    let id = ToolId::new("skills.read").unwrap_or_else(|| unreachable!("it is a valid id"));
    let about = "Read a file of a skill.";
    let mut guard = ToolSpec::new(id, "Read skill", about, Effects::Reads);
    guard.idempotent = true;
    guard.icons = icons::for_toolset("skills");
    guard
}

/// Finds the file with the URI `uri`. Returns the file and its skill, or `None` if no skill has
/// this file.
fn find_file<'e>(
    entries: &'e [OfferedSkill],
    uri: &str,
) -> Option<(&'e OfferedSkill, OfferedSkillFile)> {
    entries.iter().find_map(|entry| {
        let at = entry.files.binary_search_by(|part| part.uri.as_str().cmp(uri)).ok()?;
        Some((entry, entry.files[at].clone()))
    })
}

/// Returns the direct children of the folder with the URI `uri` in a skill, by URI. Fails if there
/// is no such folder.
fn children(
    entries: &[OfferedSkill],
    uri: &str,
) -> Result<BTreeMap<String, ResourceSpec>, ToolError> {
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
                spec.media_type = Some(FOLDER_MEDIA_TYPE.to_owned());
                spec
            }
        };
        children.insert(spec.uri.clone(), spec);
    }
    if children.is_empty() && find_file(entries, uri).is_some() {
        return Err(ToolError::invalid("/uri", format!("`{uri}` is a file, not a folder")));
    }
    if children.is_empty() && prefix != SCHEME {
        return Err(ToolError::not_found(format!("no skill has a folder at `{uri}`")));
    }
    Ok(children)
}

/// Reports to `changes` each file of a skill that differs between `before` and `now`.
fn report_changes(before: &[OfferedSkill], now: &[OfferedSkill], changes: &ChangeFeed) {
    let files = |entries: &[OfferedSkill]| -> BTreeMap<String, Arc<SkillFileInfo>> {
        let files = entries.iter().flat_map(|entry| &entry.files);
        files.map(|part| (part.uri.clone(), part.info.clone())).collect()
    };
    let before = files(before);
    let now = files(now);
    for (uri, known) in &before {
        if now.get(uri) != Some(known) {
            changes.publish(&ServerChange::Resource(uri.as_str().into()));
        }
    }
    for uri in now.keys().filter(|uri| !before.contains_key(*uri)) {
        changes.publish(&ServerChange::Resource(uri.as_str().into()));
    }
    changes.publish(&ServerChange::Resources);
}
