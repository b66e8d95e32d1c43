//! Finds the package registries that a project's files name: settings of package managers, lock
//! files and dependencies by URL.

use toolgate_net::{HttpUrl, normalize_host};
use toolgate_world::Root;
use toolgate_world::processes::rule_for_url;
use toolgate_world::root::DiskWorkMonitor;

use super::build_tool::BuildTool;
use super::projects::join;

/// The maximum number of bytes that are read of one project file. A lock file can be long.
const FILE_BYTES: u64 = 16 << 20;
/// The maximum number of hosts that are found in a project's files.
const HOSTS_MAX: usize = 16;
/// The URL that Cargo's lock files use for the default registry. No program connects to this URL.
const CARGO_DEFAULT: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// A package registry host that a project's file names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProjectHost {
    /// The entry of the setting `sandbox.hosts` that allows the host.
    pub(super) rule: String,
    /// The host, normalized for comparison with host rules.
    pub(super) host: String,
    pub(super) port: u16,
    /// The path of the file that names the host, relative to the project.
    pub(super) file: &'static str,
}

/// A project file that may name hosts of package registries. Only lines that contain one of
/// `markers` are searched for URLs.
struct RegistryHostFile {
    name: &'static str,
    markers: &'static [&'static str],
}

const fn file(name: &'static str, markers: &'static [&'static str]) -> RegistryHostFile {
    RegistryHostFile { name, markers }
}

static JAVASCRIPT: [RegistryHostFile; 8] = [
    file(".npmrc", &["registry"]),
    file(".yarnrc", &["registry"]),
    file(".yarnrc.yml", &["npmRegistryServer"]),
    file("package.json", &["\"git+", "\"git:"]),
    file("package-lock.json", &["\"resolved\""]),
    file("npm-shrinkwrap.json", &["\"resolved\""]),
    file("yarn.lock", &["resolved "]),
    file("pnpm-lock.yaml", &["tarball:"]),
];

static RUST: [RegistryHostFile; 4] = [
    file(".cargo/config.toml", &["registry", "index"]),
    file(".cargo/config", &["registry", "index"]),
    file("Cargo.toml", &["git = ", "registry-index = "]),
    file("Cargo.lock", &["source = "]),
];

static PYTHON: [RegistryHostFile; 8] = [
    file(".venv/pip.conf", &["index-url", "find-links"]),
    file("venv/pip.conf", &["index-url", "find-links"]),
    file("requirements.txt", &["://"]),
    file("pyproject.toml", &["url = ", "git = "]),
    file("uv.toml", &["url = ", "index-url"]),
    file("uv.lock", &["registry = ", "url = ", "git = "]),
    file("poetry.lock", &["url = "]),
    file("Pipfile.lock", &["\"url\""]),
];

static DOTNET: [RegistryHostFile; 3] = [
    file("nuget.config", &["value="]),
    file("NuGet.Config", &["value="]),
    file("NuGet.config", &["value="]),
];

/// Returns the registry hosts that the files of the project in `folder` name, without duplicates.
/// `kind` is the project's build tool.
pub(super) fn find_hosts(
    root: &Root,
    kind: BuildTool,
    folder: &str,
    watch: &DiskWorkMonitor,
) -> Vec<ProjectHost> {
    let files: &[RegistryHostFile] = match kind {
        BuildTool::Npm | BuildTool::Pnpm | BuildTool::Yarn => &JAVASCRIPT,
        BuildTool::Cargo => &RUST,
        BuildTool::Pytest => &PYTHON,
        BuildTool::Dotnet => &DOTNET,
        BuildTool::Go | BuildTool::Gradle | BuildTool::Maven | BuildTool::Make => &[],
    };
    let mut found = Vec::new();
    for file in files {
        let bytes = root
            .open_file(&join(folder, file.name))
            .and_then(|opened| opened.read(0, FILE_BYTES, watch));
        // A missing file names no host.
        let Ok(bytes) = bytes else { continue };
        add_hosts(&mut found, file, &String::from_utf8_lossy(&bytes));
    }
    found
}

/// Adds the hosts in `text`, the content of `file`, to `found`.
fn add_hosts(found: &mut Vec<ProjectHost>, file: &RegistryHostFile, text: &str) {
    for line in text.lines().map(str::trim_start) {
        let is_comment = line.starts_with(['#', ';']);
        let is_marked = file.markers.iter().any(|marker| line.contains(*marker));
        if is_comment || !is_marked || line.contains(CARGO_DEFAULT) {
            continue;
        }
        for (at, _) in line.match_indices("://") {
            let host = host_at(line, at, file.name);
            let is_new = |host: &ProjectHost| !found.iter().any(|it| it.rule == host.rule);
            if let Some(host) = host.filter(is_new) {
                found.push(host);
            }
            if found.len() >= HOSTS_MAX {
                return;
            }
        }
    }
}

/// Returns the host of the HTTP URL in `line` whose `://` is at byte `at`. `file` is the name of
/// the file that contains the line.
fn host_at(line: &str, at: usize, file: &'static str) -> Option<ProjectHost> {
    let (before, after) = line.split_at(at);
    let scheme = ["https", "http"].into_iter().find(|scheme| before.ends_with(*scheme))?;
    let end = after[3..].find(|c: char| c.is_whitespace() || "\"'`,;<>()[]{}/?#".contains(c));
    let authority = &after[3..3 + end.unwrap_or(after.len() - 3)];
    // The user name and password are not shown.
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let url = format!("{scheme}://{host}/");
    let parsed = HttpUrl::parse(&url).ok()?;
    let host = normalize_host(parsed.host())?;
    let rule = rule_for_url(&url)?;
    Some(ProjectHost { rule, host, port: parsed.port(), file })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(files: &[RegistryHostFile], name: &str, text: &str, rules: &[&str]) {
        let file = files.iter().find(|file| file.name == name).expect("a known file");
        let mut found = Vec::new();
        add_hosts(&mut found, file, text);
        let found: Vec<_> = found.into_iter().map(|host| host.rule).collect();
        assert_eq!(found, rules, "{name}: {text}");
    }

    #[test]
    fn registries_in_settings_and_lock_files_are_found() {
        let npmrc = "registry=https://ada:key@a.example/npm/\n# registry=https://no.example\n\
                     @acme:registry=http://b.example:4873/\n//a.example/:_authToken=x\n";
        check(&JAVASCRIPT, ".npmrc", npmrc, &["a.example", "b.example:4873"]);
        let lock = "\"resolved\": \"https://a.example/leaf.tgz\",\n\"url\": \"https://no.example\"\n\
                    \"resolved\": \"git+https://b.example/x.git#1\"\n";
        check(&JAVASCRIPT, "package-lock.json", lock, &["a.example", "b.example"]);
        let lock = "source = \"registry+https://github.com/rust-lang/crates.io-index\"\n\
                    source = \"sparse+https://a.example/index/\"\n\
                    source = \"git+https://b.example/x?rev=1#2\"\n";
        check(&RUST, "Cargo.lock", lock, &["a.example", "b.example"]);
        let config = "[source.mirror]\nregistry = \"sparse+https://a.example/\"\n";
        check(&RUST, ".cargo/config.toml", config, &["a.example"]);
        let requirements =
            "--extra-index-url https://a.example/simple\nx @ https://b.example/x.whl\n";
        check(&PYTHON, "requirements.txt", requirements, &["a.example", "b.example"]);
        let project = "[[tool.poetry.source]]\nurl = \"https://a.example/simple\"\n\
                       homepage = \"https://no.example\"\n";
        check(&PYTHON, "pyproject.toml", project, &["a.example"]);
        check(
            &DOTNET,
            "nuget.config",
            "<add key=\"x\" value=\"https://a.example/v3\" />",
            &["a.example"],
        );
    }
}
