//! Stored results as resources, each visible to its own caller only.

use serde_json::{Value, json};
use toolgate_contract::{
    BoxFuture, Contents, Ctx, ResourceSpec, ResourceTemplate, Resources, ToolError, ToolSpec,
};

use super::{Results, SCHEME, Whole};

pub(super) struct Source {
    pub(super) results: Results,
    pub(super) guard: ToolSpec,
}

impl Resources for Source {
    fn guard(&self) -> &ToolSpec {
        &self.guard
    }

    fn owns(&self, uri: &str) -> bool {
        uri.starts_with(SCHEME)
    }

    fn asked(&self, uri: &str) -> Value {
        json!({ "id": uri })
    }

    fn list<'a>(
        &'a self,
        ctx: &'a Ctx,
        after: Option<&'a str>,
        at_most: usize,
    ) -> BoxFuture<'a, Result<Vec<ResourceSpec>, ToolError>> {
        let all = self.results.all();
        let own = all.kept.iter().filter(|kept| kept.whose == ctx.caller);
        let mut own: Vec<_> = own.map(|kept| kept.spec.clone()).collect();
        drop(all);
        own.sort_by(|a, b| a.uri.cmp(&b.uri));
        own.retain(|one| after.is_none_or(|after| one.uri.as_str() > after));
        own.truncate(at_most);
        Box::pin(async { Ok(own) })
    }

    fn templates(&self) -> Vec<ResourceTemplate> {
        let about = "A result, or a part of one, that was too long to be given at once.";
        vec![ResourceTemplate::new("result://{id}", "result").about(about)]
    }

    fn read<'a>(
        &'a self,
        ctx: &'a Ctx,
        uri: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Contents>, ToolError>> {
        Box::pin(async move {
            let (spec, whole) = self.results.of(&ctx.caller, uri)?;
            let media_type = spec.media_type.unwrap_or_default();
            Ok(vec![match whole {
                Whole::Text(text) => Contents::text(uri, media_type, &*text),
                Whole::Bytes(bytes) => Contents::bytes(uri, media_type, bytes),
            }])
        })
    }
}
