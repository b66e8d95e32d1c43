//! Converts between workspace paths and `file:` URIs.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use percent_encoding::percent_decode_str;
use toolgate_contract::ToolError;

use crate::uri_paths::percent_encode_path;

/// Converter between paths and `file:` URIs for everything below one folder.
pub(super) struct FileUriConverter {
    /// The URI of the converter's folder, without a trailing `/`.
    base: String,
    /// The components of the absolute path of the converter's folder.
    names: Vec<Vec<u8>>,
}

impl FileUriConverter {
    /// Creates the converter for the folder at the absolute path `root`.
    pub(super) fn for_root(root: &Path) -> Self {
        let path = root.as_os_str().as_bytes();
        let names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
        let names: Vec<Vec<u8>> = names.map(<[u8]>::to_vec).collect();
        let mut base = "file://".to_owned();
        for name in &names {
            base.push('/');
            base += &percent_encode_path(name);
        }
        Self { base, names }
    }

    /// Returns true if `uri` has the scheme `file:`, even if it is outside the converter's folder.
    pub(super) fn is_file_uri(uri: &str) -> bool {
        uri.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("file:"))
    }

    /// Returns the URI of `path`, which is relative to the converter's folder.
    pub(super) fn uri_for(&self, path: &str) -> String {
        let mut uri = self.base.clone();
        if path != "." || self.names.is_empty() {
            uri.push('/');
        }
        if path != "." {
            uri += &percent_encode_path(path);
        }
        uri
    }

    /// Returns the URI template (RFC 6570) that covers every file in the converter's folder.
    pub(super) fn template(&self) -> String {
        format!("{}/{{+path}}", self.base)
    }

    /// Returns the path that `uri` names, relative to the converter's folder. Returns `.` for the
    /// folder itself.
    ///
    /// The disk is not accessed. Fails if the path in `uri` contains `.` or `..` as a component, or
    /// is outside the folder.
    pub(super) fn parse_path(&self, uri: &str) -> Result<String, ToolError> {
        let not_found = |why: &str| {
            ToolError::not_found(format!("there is no file at `{}`: {why}", shorten(uri)))
        };
        if !Self::is_file_uri(uri) {
            return Err(not_found("the URI is not a `file:` URI"));
        }
        let rest = &uri[5..];
        let path = match rest.strip_prefix("//") {
            Some(rest) if rest.starts_with('/') => rest,
            Some(_) => {
                let message =
                    format!("`{}` names a host; a file's URI is `{}/…`", shorten(uri), self.base);
                return Err(ToolError::not_allowed(message));
            }
            None if rest.starts_with('/') => rest,
            None => return Err(not_found("the URI's path is not absolute")),
        };
        if path.contains(['?', '#']) {
            return Err(not_found("write `?` in a file's name as `%3F`, and `#` as `%23`"));
        }
        let path = path.strip_prefix('/').unwrap_or(path);
        let mut names = Vec::new();
        for written in path.strip_suffix('/').unwrap_or(path).split('/') {
            let name = decode_percent(written)
                .ok_or_else(|| not_found("the URI contains a `%` that is not an escape"))?;
            match &name[..] {
                b"." | b".." => {
                    let message = format!("`{}` has `.` or `..` in its path", shorten(uri));
                    return Err(ToolError::not_allowed(message));
                }
                name if name.contains(&b'/') || name.contains(&0) => {
                    let message = format!("`{}` has a `/` or a NUL in a name", shorten(uri));
                    return Err(ToolError::not_allowed(message));
                }
                b"" if !path.is_empty() => return Err(not_found("the URI contains an empty name")),
                b"" => {}
                _ => names.push(name),
            }
        }
        let Some(inside) = names.strip_prefix(&self.names[..]) else {
            let message = format!(
                "`{}` is outside the workspace; URIs inside it are `{}/…`",
                shorten(uri),
                self.base
            );
            return Err(ToolError::not_allowed(message));
        };
        if inside.is_empty() {
            return Ok(".".to_owned());
        }
        let path = inside.join(&b'/');
        String::from_utf8(path).map_err(|_| not_found("the file's name is not UTF-8"))
    }
}

/// Percent-decodes `name`. Returns `None` if a `%` is not followed by two hexadecimal digits.
fn decode_percent(name: &str) -> Option<Vec<u8>> {
    let is_escape = |at: usize| {
        let digits = name.as_bytes().get(at + 1..at + 3);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    let is_valid = name.match_indices('%').all(|(at, _)| is_escape(at));
    is_valid.then(|| percent_decode_str(name).collect())
}

/// Shortens and escapes `uri` for an error message.
fn shorten(uri: &str) -> String {
    uri.chars().take(300).flat_map(char::escape_debug).collect()
}

/// Fuzz target: panics if the URI in `bytes` leads out of the folder, or if a path changes on
/// conversion to a URI and back.
#[cfg(any(fuzzing, test))]
pub(crate) fn check_uri(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let uris = FileUriConverter::for_root(Path::new("/my ws"));
    for uri in [text, &format!("{}/{text}", uris.base)] {
        let Ok(path) = uris.parse_path(uri) else { continue };
        assert!(!path.is_empty() && !path.starts_with('/') && !path.contains('\0'), "{path:?}");
        assert!(path == "." || path.split('/').all(|name| !matches!(name, "" | "." | "..")));
        assert_eq!(uris.parse_path(&uris.uri_for(&path)).ok().as_ref(), Some(&path));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use toolgate_contract::ToolErrorKind;

    use super::*;

    fn check(root: &str, uri: &str) -> Result<String, ToolErrorKind> {
        FileUriConverter::for_root(Path::new(root)).parse_path(uri).map_err(|err| err.fault)
    }

    #[test]
    fn reserved_characters_are_encoded_and_others_are_not() {
        let uris = FileUriConverter::for_root(Path::new("/my ws"));
        assert_eq!(uris.uri_for("a b#c?d%e/é"), "file:///my%20ws/a%20b%23c%3Fd%25e/%C3%A9");
        assert_eq!(uris.uri_for("a+b,(c)@d=1.rs"), "file:///my%20ws/a+b,(c)@d=1.rs");
        assert_eq!(uris.uri_for("."), "file:///my%20ws");
        assert_eq!(uris.template(), "file:///my%20ws/{+path}");
        assert_eq!(
            FileUriConverter::for_root(Path::new("/{x}")).template(),
            "file:///%7Bx%7D/{+path}"
        );
        assert_eq!(FileUriConverter::for_root(Path::new("/")).uri_for("etc"), "file:///etc");
        assert_eq!(FileUriConverter::for_root(Path::new("/")).uri_for("."), "file:///");
    }

    #[test]
    fn equivalent_uris_give_the_same_path() {
        for uri in ["file:///ws/a b", "FILE:///ws/a%20b", "file:/ws/%61%20b", "file:///ws/a%20b/"] {
            assert_eq!(check("/ws", uri).as_deref(), Ok("a b"), "{uri}");
        }
        assert_eq!(check("/ws", "file:///ws").as_deref(), Ok("."));
        assert_eq!(check("/ws", "file:///ws/").as_deref(), Ok("."));
        assert_eq!(check("/", "file:///").as_deref(), Ok("."));
        assert_eq!(check("/", "file:///etc/x").as_deref(), Ok("etc/x"));
    }

    #[test]
    fn a_uri_outside_the_workspace_is_refused_in_any_encoding() {
        for uri in [
            "file:///etc/passwd",
            "file:///ws_evil/secret",
            "file:///w",
            "file:///",
            "file:///ws/../ws_evil/secret",
            "file:///ws/%2e%2e/ws_evil/secret",
            "file:///ws/.%2E/x",
            "file:///ws/./x",
            "file:///ws/a%2fb",
            "file:///ws/%2e%2e%2fws_evil",
            "file:///ws/a%00b",
            "file://localhost/ws/a",
            "file://evil/ws/a",
            "file://ws/a",
        ] {
            assert_eq!(check("/ws", uri), Err(ToolErrorKind::NotAllowed), "{uri}");
        }
        for uri in [
            "file:ws/a",
            "file:",
            "http://ws/a",
            "file:///ws//a",
            "file:///ws/a%",
            "file:///ws/a%2",
            "file:///ws/a%zz",
            "file:///ws/a#b",
            "file:///ws/a?b",
            "file:///ws/a%FF",
        ] {
            assert_eq!(check("/ws", uri), Err(ToolErrorKind::NotFound), "{uri}");
        }
    }

    proptest! {
        #[test]
        fn a_path_survives_conversion_to_a_uri_and_back(
            names in proptest::collection::vec("[^/\u{0}]{1,12}", 1..4),
            root in "(/[^/\u{0}]{1,6}){0,3}",
        ) {
            prop_assume!(names.iter().all(|name| name != "." && name != ".."));
            let uris = FileUriConverter::for_root(Path::new(&root));
            let path = names.join("/");
            let uri = uris.uri_for(&path);
            prop_assert!(uri.is_ascii() && !uri.contains([' ', '#', '?', '"', '<', '{']), "{uri}");
            if !root.split('/').any(|name| name == "." || name == "..") {
                prop_assert_eq!(uris.parse_path(&uri).expect("it is inside"), path);
            }
        }
    }
}
