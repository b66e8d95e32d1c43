//! Finds projects in the workspace by the files of their build tools.

use std::ffi::OsStr;

use serde_json::Value;
use toolgate_contract::{ToolError, ToolErrorKind, strip_byte_order_mark_bytes};

use super::build_tool::{BuildTool, ProjectProperties};
use toolgate_world::Root;
use toolgate_world::root::{DiskWorkMonitor, EntryKind as Entry, quoted_path};

/// The maximum number of entries of one folder that are read to find projects.
const NAMES_MAX: usize = 10_000;
/// The maximum number of bytes of a project file that are read.
const FILE_BYTES: u64 = 1 << 20;
/// The maximum depth of subfolders that are searched for projects, if a folder itself has no
/// project.
const DEPTH_MAX: usize = 3;
/// The maximum number of folders that are searched for projects.
const FOLDERS_MAX: usize = 2000;
/// The maximum number of projects that are returned.
const PROJECTS_MAX: usize = 50;
/// Names of folders that build tools generate. Such folders are not searched for projects.
const GENERATED_FOLDERS: [&str; 8] =
    ["node_modules", "target", "dist", "build", "vendor", "venv", "bin", "obj"];

/// A project that was found in the workspace, with its build tool.
#[derive(Debug)]
pub(super) struct WorkspaceProject {
    pub(super) kind: BuildTool,
    /// The folder of the project, relative to the workspace.
    pub(super) folder: String,
    /// The name of the file that identified the project, such as `Cargo.toml`.
    pub(super) file: String,
    pub(super) facts: ProjectProperties,
}

/// Finds the projects directly in `folder`. If there are none, searches the parent folders of
/// `folder`, then its subfolders.
pub(super) fn find_nearest(
    root: &Root,
    folder: &str,
    watch: &DiskWorkMonitor,
) -> Result<Vec<WorkspaceProject>, ToolError> {
    let folder = &relative_folder(root, folder)?;
    let here = projects_in(root, folder, watch)?;
    if !here.is_empty() {
        return Ok(here);
    }
    let mut ancestor = folder.as_str();
    while let Some((parent, _)) = ancestor.rsplit_once('/') {
        let found = projects_in(root, parent, watch)?;
        if !found.is_empty() {
            return Ok(found);
        }
        ancestor = parent;
    }
    if folder != "." {
        let found = projects_in(root, ".", watch)?;
        if !found.is_empty() {
            return Ok(found);
        }
    }
    find_below(root, folder, NestedProjectPolicy::Skipped, watch)
}

/// Finds all projects in and below `folder`, including nested projects. If `folder` itself has no
/// project, also finds the projects of its nearest parent folder that has any.
pub(super) fn find_all(
    root: &Root,
    folder: &str,
    watch: &DiskWorkMonitor,
) -> Result<Vec<WorkspaceProject>, ToolError> {
    let mut found = find_nearest(root, folder, watch)?;
    let folder = relative_folder(root, folder)?;
    let inner = find_below(root, &folder, NestedProjectPolicy::Included, watch)?;
    let is_known = |known: &[WorkspaceProject], project: &WorkspaceProject| {
        known.iter().any(|it| it.folder == project.folder && it.kind == project.kind)
    };
    for project in inner {
        if !is_known(&found, &project) {
            found.push(project);
        }
    }
    Ok(found)
}

/// Checks that `folder` is a folder of the workspace. Returns its relative path without `.` and
/// empty components.
fn relative_folder(root: &Root, folder: &str) -> Result<String, ToolError> {
    match root.kind_at(folder).map_err(|err| err.with_pointer("/path"))? {
        Some(Entry::Dir) => {}
        Some(Entry::File | Entry::Symlink | Entry::Other) => {
            let message =
                format!("{} is not a folder; name the project's folder", quoted_path(folder));
            return Err(ToolError::invalid("/path", message));
        }
        None => {
            return Err(ToolError::not_found(format!("{} does not exist", quoted_path(folder))));
        }
    }
    let root_path = root.path().to_str().unwrap_or_default();
    let inside = folder.strip_prefix(root_path).filter(|_| folder.starts_with('/'));
    let folder = inside.unwrap_or(folder);
    let names: Vec<&str> = folder.split('/').filter(|name| !matches!(*name, "" | ".")).collect();
    // A path with `..` stays as it is, because only the kernel resolves it. Its parents are not
    // searched.
    Ok(if names.is_empty() { ".".to_owned() } else { names.join("/") })
}

/// Rule for projects inside other projects: include or skip them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NestedProjectPolicy {
    Included,
    Skipped,
}

/// Finds the projects below `folder`, nearest first. `nested` determines if projects inside other
/// projects are included.
fn find_below(
    root: &Root,
    folder: &str,
    nested: NestedProjectPolicy,
    watch: &DiskWorkMonitor,
) -> Result<Vec<WorkspaceProject>, ToolError> {
    let mut found = Vec::new();
    let mut level = vec![folder.to_owned()];
    let mut visited = 0;
    for _ in 0..DEPTH_MAX {
        let mut next = Vec::new();
        for folder in &level {
            for name in subfolders(root, folder, watch)? {
                visited += 1;
                if visited > FOLDERS_MAX || found.len() >= PROJECTS_MAX {
                    return Ok(found);
                }
                let inner = if folder == "." { name } else { format!("{folder}/{name}") };
                // Unreadable folders are skipped.
                let Ok(projects) = projects_in(root, &inner, watch) else { continue };
                if projects.is_empty() || nested == NestedProjectPolicy::Included {
                    next.push(inner);
                }
                found.extend(projects);
            }
        }
        level = next;
    }
    Ok(found)
}

fn subfolders(
    root: &Root,
    folder: &str,
    watch: &DiskWorkMonitor,
) -> Result<Vec<String>, ToolError> {
    let page = match root.list_page(folder, None, NAMES_MAX, watch) {
        Err(err) if err.fault == ToolErrorKind::Canceled => return Err(err),
        Err(_) => return Ok(Vec::new()),
        Ok(page) => page,
    };
    let folders = page.entries.into_iter().filter(|(_, meta)| match meta.kind() {
        Entry::Dir => true,
        Entry::File | Entry::Symlink | Entry::Other => false,
    });
    let names = folders.filter_map(|(name, _)| name.into_string().ok());
    Ok(names
        .filter(|name| !name.starts_with('.') && !GENERATED_FOLDERS.contains(&&**name))
        .collect())
}

/// Returns the projects whose build files are directly in `folder`.
fn projects_in(
    root: &Root,
    folder: &str,
    watch: &DiskWorkMonitor,
) -> Result<Vec<WorkspaceProject>, ToolError> {
    let page = root.list_page(folder, None, NAMES_MAX, watch)?;
    let entries = page.entries.into_iter();
    let names: Vec<String> = entries.filter_map(|(name, _)| name.into_string().ok()).collect();
    let has = |name: &str| names.iter().any(|known| known == name);
    let ends = |end: &str| names.iter().find(|name| has_extension(name, end));
    let first = |known: &[&str]| known.iter().find(|name| has(name)).map(|&name| name.to_owned());
    let text = |name: &str| read_text(root, &join(folder, name), watch);
    let mut found = Vec::new();
    let mut add = |kind: BuildTool, file: String, facts: ProjectProperties| {
        let facts = ProjectProperties { names: names.clone(), ..facts };
        found.push(WorkspaceProject { kind, folder: folder.to_owned(), file, facts });
    };
    if let Some(file) = first(&["Cargo.toml"]) {
        add(BuildTool::Cargo, file, ProjectProperties::default());
    }
    if let Some(file) = first(&["go.mod"]) {
        add(BuildTool::Go, file, ProjectProperties::default());
    }
    let dotnet = ["sln", "slnx", "csproj", "fsproj", "vbproj"].iter().find_map(|end| ends(end));
    if let Some(file) = dotnet {
        add(BuildTool::Dotnet, file.clone(), ProjectProperties::default());
    }
    let gradle = ["build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts"];
    if let Some(file) = first(&gradle) {
        add(BuildTool::Gradle, file, ProjectProperties::default());
    }
    if let Some(file) = first(&["pom.xml"]) {
        add(BuildTool::Maven, file, ProjectProperties::default());
    }
    if let Some(file) = first(&["package.json"]) {
        let package = serde_json::from_str::<Value>(&text(&file));
        let unreadable = package.as_ref().err().map(ToString::to_string);
        let package = package.unwrap_or_default();
        let test_script = package["scripts"]["test"].as_str().unwrap_or_default().to_owned();
        let scripts = package["scripts"].as_object().into_iter().flatten();
        let scripts = scripts.map(|(name, _)| name.clone()).collect();
        let manager = package["packageManager"].as_str().unwrap_or_default();
        let kind = if has("pnpm-lock.yaml") || manager.starts_with("pnpm@") {
            BuildTool::Pnpm
        } else if has("yarn.lock") || manager.starts_with("yarn@") {
            BuildTool::Yarn
        } else {
            BuildTool::Npm
        };
        add(
            kind,
            file,
            ProjectProperties { scripts, test_script, unreadable, ..ProjectProperties::default() },
        );
    }
    let python = [
        "pytest.ini",
        "pyproject.toml",
        "setup.cfg",
        "setup.py",
        "tox.ini",
        "conftest.py",
        "requirements.txt",
    ];
    let is_test = |name: &&String| name.starts_with("test_") && has_extension(name, "py");
    let python_file = first(&python).or_else(|| names.iter().find(is_test).cloned());
    if let Some(file) = python_file {
        let files = ["pyproject.toml", "setup.cfg", "tox.ini", "pytest.ini"];
        let parts = files.into_iter().filter(|name| has(name));
        let python = parts.map(&text).collect::<Vec<_>>().join("\n");
        // The interpreter is a symlink out of the workspace, so check the link itself without
        // following it.
        let interpreter = ["venv", ".venv"].into_iter().find_map(|venv| {
            let interpreter = format!("{venv}/bin/python");
            root.entry_details(&join(folder, &interpreter)).ok().map(|_| interpreter)
        });
        add(
            BuildTool::Pytest,
            file,
            ProjectProperties { python, interpreter, ..ProjectProperties::default() },
        );
    }
    if let Some(file) = first(&["GNUmakefile", "makefile", "Makefile"]) {
        let scripts = make_targets(&text(&file));
        add(BuildTool::Make, file, ProjectProperties { scripts, ..ProjectProperties::default() });
    }
    Ok(found)
}

fn has_extension(name: &str, end: &str) -> bool {
    std::path::Path::new(name).extension() == Some(OsStr::new(end))
}

/// Joins the relative path `folder` and the path `name`.
pub(super) fn join(folder: &str, name: &str) -> String {
    if folder == "." { name.to_owned() } else { format!("{folder}/{name}") }
}

/// Returns the text of the file at `path` without a byte order mark, or an empty text if the file
/// is unreadable.
fn read_text(root: &Root, path: &str, watch: &DiskWorkMonitor) -> String {
    let bytes = root.open_file(path).and_then(|file| file.read(0, FILE_BYTES, watch));
    let text =
        |bytes: Vec<u8>| String::from_utf8_lossy(strip_byte_order_mark_bytes(&bytes)).into_owned();
    bytes.map(text).unwrap_or_default()
}

/// Returns the names of the targets in `makefile` that contain no variables or patterns.
fn make_targets(makefile: &str) -> Vec<String> {
    let heads = makefile.lines().filter(|line| !line.starts_with(['\t', '#', ' ', '.']));
    let heads = heads.filter_map(|line| {
        let (head, rest) = line.split_once(':')?;
        (!rest.starts_with('=') && !head.contains(['=', '$', '%'])).then_some(head)
    });
    heads.flat_map(str::split_whitespace).map(str::to_owned).collect()
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test creates its files from outside")]
mod tests {
    use super::*;

    #[test]
    fn make_targets_are_the_literal_names_before_a_colon() {
        let makefile = "CC := gcc\nall: main.o\n\tgcc x: y\n.PHONY: test\ntest check: all\n# no: x\n%.o: %.c\n";
        assert_eq!(make_targets(makefile), ["all", "test", "check"]);
    }

    #[test]
    fn nested_projects_are_found_only_by_find_all() {
        let folder = tempfile::TempDir::new().unwrap();
        for path in ["Cargo.toml", "web/package.json", "web/tools/gen/go.mod", "docs/x"] {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let root = Root::open(folder.path()).unwrap();
        let watch = DiskWorkMonitor::default();
        let summary = |found: Vec<WorkspaceProject>| -> Vec<(String, BuildTool)> {
            found.into_iter().map(|project| (project.folder, project.kind)).collect()
        };
        assert_eq!(
            summary(find_nearest(&root, ".", &watch).unwrap()),
            [(".".to_owned(), BuildTool::Cargo)]
        );
        let all =
            [(".", BuildTool::Cargo), ("web", BuildTool::Npm), ("web/tools/gen", BuildTool::Go)];
        let all = all.map(|(folder, kind)| (folder.to_owned(), kind));
        assert_eq!(summary(find_all(&root, ".", &watch).unwrap()), all);
        assert_eq!(summary(find_all(&root, "web", &watch).unwrap()), all[1..]);
    }
}
