//! The part of a recording that describes the request.

use bytes::Bytes;
use http::request::Parts;

use super::headers;
use crate::engine::EditedBody;
use crate::planner::Planner;
use crate::recording::{PlanInputs, RequestForm, SentRequest};
use crate::tokens::Meter;
use crate::tokens::models::Source;

/// Describes a request that is about to be sent in this form.
pub(super) fn sent(
    parts: &Parts,
    request: Bytes,
    edited: &EditedBody,
    form: RequestForm,
    planner: &Planner,
    dry_run: bool,
) -> SentRequest {
    let was_planned = edited.report.is_some() || edited.parse_error.is_some();
    let inputs = PlanInputs {
        form: if was_planned { form } else { RequestForm::Unedited },
        forms: planner.policy.forms(edited.report.as_ref().and_then(|report| report.model.as_deref())).into_owned(),
        windows: learned_window(edited, &planner.meter).into_iter().collect(),
        token_factor: edited.basis.counted.map(|counted| counted.factor),
        cold_passes: edited.basis.cold_passes.clone(),
        sent: edited.basis.sent.clone(),
        upstream: Some(planner.settings.upstream.clone()),
        not_stored: was_planned && edited.error.is_some(),
        ..PlanInputs::default()
    };
    SentRequest {
        target: parts.uri.clone(),
        request,
        rewritten: edited.changed().then(|| edited.body.clone()),
        request_encoding: headers::content_encoding(&parts.headers),
        dry_run,
        inputs,
        summary: edited.basis.summary.clone(),
        offloads: edited.offloads.clone(),
        answers: edited.basis.answers.clone(),
    }
}

/// The model and its window, if the plan used a window that the upstream reported.
fn learned_window(edited: &EditedBody, meter: &Meter) -> Option<(String, usize)> {
    let model = edited.report.as_ref()?.model.as_deref()?;
    let window = meter.model(model).window.filter(|window| window.source == Source::Upstream)?.value;
    (edited.basis.window == Some(window)).then(|| (model.to_owned(), window))
}
