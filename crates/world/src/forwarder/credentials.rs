//! Credentials that a forwarder adds to the requests of programs, which never see them.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use toolgate_contract::{fill_variables, variable_names};
use toolgate_net::{HostRule, RequestPath};

use super::gate::ForwarderDestination;
use super::http_messages::is_connection_header;

/// A header that a forwarder adds to the requests of programs for a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostCredential {
    /// The host whose requests get the credential, and the paths if only some of them do.
    rule: HostRule,
    header: HeaderName,
    /// The value, with `${NAME}` for the server's environment variable `NAME`.
    value: String,
}

/// The header of a [`HostCredential`] with its secret value.
pub(super) struct ResolvedHostCredential {
    rule: HostRule,
    header: HeaderName,
    value: HeaderValue,
}

impl HostCredential {
    /// Parses the credential for `host`, a [`HostRule`]: the name of a header and its value, in
    /// which `${NAME}` stands for a secret.
    ///
    /// # Errors
    /// A sentence about the invalid part.
    pub fn parse(host: &str, header: &str, value: &str) -> Result<Self, String> {
        let rule = HostRule::parse(host)?;
        let name = header.parse::<HeaderName>();
        let name = name.map_err(|_| format!("the header {header:?} is not a valid name"))?;
        if is_connection_header(&name) {
            return Err(format!("the header `{name}` cannot be a credential"));
        }
        if variable_names(value).next().is_none() {
            return Err(format!(
                "the value of `{name}` for {host:?} names no secret; write `${{NAME}}` for the \
                 environment variable with the secret, because programs can read the settings"
            ));
        }
        Ok(Self { rule, header: name, value: value.to_owned() })
    }

    /// Returns the rule for the host and the paths that get the credential.
    pub(super) fn rule(&self) -> &HostRule {
        &self.rule
    }

    /// Returns the header with its secret value: replaces each `${NAME}` in the value by what
    /// `variable` returns for `NAME`.
    ///
    /// # Errors
    /// A sentence without the secret, if a variable is not set or the value is not valid.
    pub(super) fn fill(
        &self,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<ResolvedHostCredential, String> {
        let Self { rule, header, value } = self;
        let odd = |why: &str| format!("the value of `{header}` in sandbox.credentials: {why}");
        let filled = fill_variables(value, variable).map_err(|why| odd(&why))?;
        let mut value = HeaderValue::try_from(filled.trim())
            .map_err(|_| odd("it has a character that no header may have"))?;
        value.set_sensitive(true);
        Ok(ResolvedHostCredential { rule: rule.clone(), header: header.clone(), value })
    }
}

impl ResolvedHostCredential {
    /// Returns true if requests to `target`, or some paths of it, get the credential.
    pub(super) fn is_for(&self, target: &ForwarderDestination) -> bool {
        self.rule.covers(&target.host, target.port)
    }

    /// Returns true if a request for `path` gets the credential. `path` is `None` if servers may
    /// read the path in different ways.
    pub(super) fn is_for_path(&self, path: Option<&RequestPath>) -> bool {
        self.rule.allows_all_paths() || path.is_some_and(|path| self.rule.allows_path(path))
    }

    /// Adds the credential to `headers`. Replaces a value that the program sent in the same header.
    pub(super) fn apply(&self, headers: &mut HeaderMap) {
        headers.insert(self.header.clone(), self.value.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str) -> Option<String> {
        match name {
            "TOKEN" => Some("s3cret-value\n".to_owned()),
            "BROKEN" => Some("s3cret\nvalue".to_owned()),
            _ => None,
        }
    }

    #[test]
    fn an_invalid_credential_is_refused_with_the_reason() {
        for (host, header, value, why) in [
            ("https://a.example", "Authorization", "${TOKEN}", "scheme"),
            ("a.example", "a b", "${TOKEN}", "not a valid name"),
            ("a.example", "Host", "${TOKEN}", "cannot be a credential"),
            ("a.example", "Transfer-Encoding", "${TOKEN}", "cannot be a credential"),
            ("a.example", "Authorization", "Bearer abc", "names no secret"),
        ] {
            let refusal = HostCredential::parse(host, header, value).expect_err(header);
            assert!(refusal.contains(why) && !refusal.contains("abc"), "{refusal}");
        }
    }

    #[test]
    fn a_credential_replaces_what_the_program_sent_for_its_paths_only() {
        let credential =
            HostCredential::parse("a.example/acme/*", "Authorization", "Bearer ${TOKEN}");
        let filled = credential.expect("valid").fill(set).expect("the variable is set");
        let mut headers = HeaderMap::new();
        headers.append("authorization", HeaderValue::from_static("Basic own"));
        headers.append("authorization", HeaderValue::from_static("Basic other"));
        filled.apply(&mut headers);
        let sent: Vec<_> = headers.get_all("authorization").iter().collect();
        assert_eq!(sent, ["Bearer s3cret-value"]);
        let path = |text: &str| RequestPath::parse(text).ok();
        assert!(filled.is_for_path(path("/acme/a").as_ref()));
        assert!(!filled.is_for_path(path("/other/a").as_ref()));
        assert!(!filled.is_for_path(path("/acme/..%2fother").as_ref()));
        let target = |host: &str| ForwarderDestination { host: host.to_owned(), port: 443 };
        assert!(filled.is_for(&target("a.example")) && !filled.is_for(&target("b.example")));
    }

    #[test]
    fn a_missing_or_broken_secret_is_refused_and_not_printed() {
        for (value, why) in
            [("${MISSING}", "`MISSING` is not set"), ("${BROKEN}", "no header may have")]
        {
            let credential = HostCredential::parse("a.example", "X-Key", value).expect("valid");
            let refusal = credential.fill(set).err().expect("refused");
            assert!(refusal.contains(why) && !refusal.contains("s3cret"), "{refusal}");
        }
    }
}
