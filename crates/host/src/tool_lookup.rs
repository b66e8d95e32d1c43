//! Finds the tool that a call names, unless the tool is hidden from the caller.

use std::sync::Arc;

use toolgate_contract::{CallError, Caller, Effects, ToolCall};

use crate::catalog::{CatalogToolEntry, UnavailableTool};
use crate::pipeline::tool_requests::CalledTool;
use crate::{Gate, tool_search};

impl Gate {
    /// Returns the tool with the name `name` and any separators (`files.read` or `files_read`). A
    /// tool that is hidden from the caller counts as unknown.
    pub(crate) fn find(
        &self,
        caller: &Caller,
        name: &str,
    ) -> Result<Arc<CatalogToolEntry>, CallError> {
        let catalog = self.catalog.snapshot();
        let found = catalog.find_visible(name, |spec| self.policy.visibility(caller, spec));
        found.map_err(|error| self.explain_missing(caller, error))
    }

    /// Adds the reason to the `error` about an unknown tool, if the tool may belong to an
    /// unavailable upstream and `caller` would see a tool of that name. Returns all other errors
    /// unchanged.
    fn explain_missing(&self, caller: &Caller, error: CallError) -> CallError {
        let CallError::UnknownTool { name, unavailable: None, .. } = &error else {
            return error;
        };
        let missing = self.catalog.missing_tool(name);
        match missing.filter(|missing| self.policy.shows(caller, &missing.spec)) {
            Some(UnavailableTool { reason, .. }) => CallError::UnknownTool {
                name: name.clone(),
                nearest: None,
                unavailable: Some(reason),
            },
            None => error,
        }
    }

    /// Returns true if the tool with the name `name` and any separators exists and `caller` sees
    /// it.
    pub(crate) fn shows_tool(&self, caller: &Caller, name: &str) -> bool {
        self.catalog.snapshot().has_visible(name, |spec| self.policy.shows(caller, spec))
    }

    /// Looks up the tool of `call`, and asks the policy whether the caller may see it.
    pub(crate) fn look_up(&self, call: &ToolCall) -> CalledTool {
        let named = self.catalog.snapshot().find_named(&call.tool).cloned();
        let shows = |tool: &Arc<CatalogToolEntry>| self.policy.shows(&call.caller, tool.spec());
        let is_visible = named.as_ref().is_some_and(shows);
        CalledTool { named, is_visible }
    }

    /// Returns the tool of `call`, which was looked up as `called`. A tool hidden from its caller
    /// counts as unknown.
    pub(crate) fn find_called(
        &self,
        call: &ToolCall,
        called: &CalledTool,
    ) -> Result<Arc<CatalogToolEntry>, CallError> {
        let entry = match called.visible() {
            Some(entry) => entry.clone(),
            // The error suggests another name, or has the reason that the caller may know.
            None => self.find(&call.caller, &call.tool)?,
        };
        let id = entry.spec().id.as_str();
        if call.metadata.by_id && id != call.tool {
            let nearest = Some(id.to_owned());
            return Err(CallError::UnknownTool {
                name: call.tool.clone(),
                nearest,
                unavailable: None,
            });
        }
        if call.metadata.via == Some(tool_search::READ) && entry.spec().effects != Effects::Reads {
            let message = format!("`{id}` does more than read; call it with tools_call");
            return Err(CallError::NotAllowed { message });
        }
        Ok(entry)
    }
}
