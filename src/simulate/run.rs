//! Plays all transcripts through all policies, on all cores.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{mem, thread};

use super::bill::{self, Counted, Paid};
use super::discover::{self, FoundTranscript};
use super::regret::{self, Placebo};
use super::sent_request::SentRequest;
use super::sessions::Session;
use super::{
    Conditions, Figures, Measure, Outcome, PolicyResult, PolicyUnderTest, Simulation, Transcript, TranscriptError,
    TranscriptResult, TranscriptSelection, UnreadableFile, Verdict,
};
use crate::dialect;
use crate::held::Held;
use crate::planner::{self, PlanSettings, Planner};
use crate::tokens::Meter;

/// The state that the threads share.
struct Run<'a> {
    /// The files that can be read.
    found: Vec<FoundTranscript>,
    /// The file that each request belongs to which is in several: its index in `found`, by the name of the request.
    owners: HashMap<u64, usize>,
    selection: &'a TranscriptSelection,
    candidates: &'a [PolicyUnderTest],
    conditions: &'a Conditions<'a>,
    n_played: AtomicUsize,
    n_requests: usize,
}

/// Policies whose tokens are counted alike.
struct Group<'a> {
    planner: &'a Planner,
    meter: Meter,
    baselines: Vec<Baseline>,
}

/// A segment without edits, as one meter counts it.
struct Baseline {
    cost: u64,
    counted: Vec<Counted>,
    /// The request with all messages, if it is a segment of an agent's session.
    whole: Option<SentRequest>,
}

impl Simulation {
    /// Plays all transcripts through all policies.
    pub fn run(selection: &TranscriptSelection, candidates: &[PolicyUnderTest], conditions: &Conditions<'_>) -> Self {
        let mut unreadable = Vec::new();
        let run = Run::new(selection, candidates, conditions, &mut unreadable);
        let mut transcripts = Vec::new();
        for (found, played) in run.found.iter().zip(run.play_all()) {
            match played {
                Ok(played) => transcripts.push(played),
                // All its requests are counted in another file.
                Err(TranscriptError::Empty) if found.kind.agent().is_some() => {}
                Err(error) => unreadable.push(UnreadableFile::new(&found.path, error)),
            }
        }
        unreadable.sort_by(|a, b| a.name.cmp(&b.name));
        let totals = candidates.iter().enumerate().map(|(n, candidate)| {
            let runs = transcripts.iter().filter_map(|played: &TranscriptResult| played.runs.get(n));
            let outcome = runs.fold(Outcome::default(), |sum, run| sum.plus(&run.outcome));
            PolicyResult { policy: candidate.name.clone(), window: None, outcome }
        });
        let totals = totals.collect();
        let verdict = Verdict::of(&transcripts, candidates);
        let Conditions { prices, summary_tokens, model, .. } = *conditions;
        let stand_in = model.is_none().then_some(summary_tokens);
        Self { verdict, prices, stand_in, transcripts, totals, unreadable }
    }
}

/// The file that each request belongs to, by the names of the requests of each file and when the first of them was sent. Where
/// sessions were continued in other files, that is the one that begins first.
fn owners(names: &[(Option<i64>, Vec<u64>)]) -> HashMap<u64, usize> {
    let mut in_order: Vec<_> = names.iter().enumerate().collect();
    in_order.sort_by_key(|(n, (since, _))| (*since, *n));
    // Of equal names, the last one is taken, which is of the first file.
    let in_order = in_order.into_iter().rev();
    in_order.flat_map(|(n, (_, names))| names.iter().map(move |name| (*name, n))).collect()
}

impl<'a> Run<'a> {
    /// Finds the files, and reads them once for what has to be known of all of them.
    fn new(
        selection: &'a TranscriptSelection,
        candidates: &'a [PolicyUnderTest],
        conditions: &'a Conditions<'a>,
        unreadable: &mut Vec<UnreadableFile>,
    ) -> Self {
        let mut all = discover::find_transcripts(&selection.paths, unreadable);
        // Equal sizes are ordered by path, so that the same call prints the same table.
        all.sort_by(|a, b| b.n_bytes.cmp(&a.n_bytes).then_with(|| a.path.cmp(&b.path)));
        let (mut found, mut names, mut n_all) = (Vec::new(), Vec::new(), 0);
        for file in all {
            if selection.limit.is_some_and(|limit| found.len() >= limit) {
                break;
            }
            match file.read(selection.model.as_deref(), &|_| false) {
                Ok(source) => {
                    let steps = || source.transcripts.iter().flat_map(|segment| &segment.steps);
                    let ids = steps().map(|step| step.id).filter(|id| *id != 0).collect();
                    names.push((steps().filter_map(|step| step.at).min(), ids));
                    n_all += n_requests(&source.transcripts);
                    found.push(file);
                }
                // A session in which no model was asked, and that the arguments do not name.
                Err(TranscriptError::Empty) if file.kind.agent().is_some() && !selection.paths.contains(&file.path) => {
                }
                Err(error) => unreadable.push(UnreadableFile::new(&file.path, error)),
            }
        }
        let owners = owners(&names);
        Self { found, owners, selection, candidates, conditions, n_played: AtomicUsize::default(), n_requests: n_all }
    }

    /// Plays the transcripts, each on one thread, and returns them in order.
    fn play_all(&self) -> Vec<Result<TranscriptResult, TranscriptError>> {
        let n_threads = thread::available_parallelism().map_or(1, usize::from).min(self.found.len());
        let (next, played) = (AtomicUsize::default(), Held::<BTreeMap<_, _>>::default());
        let play_some = || {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                let Some(found) = self.found.get(n) else { return };
                let result = self.play(n, found);
                played.with(|played| played.insert(n, result));
            }
        };
        thread::scope(|scope| (0..n_threads).for_each(|_| drop(scope.spawn(play_some))));
        played.with(mem::take).into_values().collect()
    }

    fn play(&self, n: usize, found: &FoundTranscript) -> Result<TranscriptResult, TranscriptError> {
        let is_elsewhere = |name: u64| self.owners.get(&name).is_some_and(|owner| *owner != n);
        let model = self.selection.model.as_deref();
        let Session { transcripts: mut segments, skipped: lines_skipped } = found.read(model, &is_elsewhere)?;
        if self.selection.five_minute_caches {
            segments = segments.into_iter().map(Transcript::with_five_minute_caches).collect();
        }
        let placebo = self.placebo(n)?;
        let Some(first) = segments.first().cloned() else { return Err(TranscriptError::Empty) };
        let dialect = dialect::of_body(&first.body);
        let planner_of = |of: &'a PolicyUnderTest| of.planners.find_without_headers(None, dialect, &first.body);
        let planners = || self.candidates.iter().map(planner_of);
        let windows: BTreeMap<_, _> = segments.iter().flat_map(|segment| segment.windows.clone()).collect();
        let meter_of = |planner: &Planner| planner.meter_with(&windows);
        if let Some(meter) = planners().next().map(meter_of) {
            // Instructions make the first request of each segment as large as it was billed.
            for segment in &mut segments {
                *segment = segment.padded(padding(segment, &meter)?);
            }
        }
        let (mut runs, mut paid, mut groups) = (Vec::new(), Paid::default(), Vec::<Group<'_>>::new());
        for (candidate, planner) in self.candidates.iter().zip(planners()) {
            if !groups.iter().any(|group| group.counts_for(planner)) {
                groups.push(Group::new(planner, meter_of(planner), &segments, self.conditions)?);
            }
            let Some(group) = groups.iter().find(|group| group.counts_for(planner)) else { continue };
            // The prices are those of the upstream that was recorded.
            let Planner { settings, keys, offload, .. } = planner;
            let upstream = first.upstream.clone().unwrap_or_else(|| settings.upstream.clone());
            let settings = PlanSettings { upstream, ..settings.clone() };
            let planner = Planner::with(settings, group.meter.clone(), keys.clone(), *offload);
            if runs.is_empty() {
                paid = segments.iter().fold(paid, |sum, segment| sum + bill::paid(&segment.steps, &planner.rates));
            }
            let (conditions, placebo) = (self.conditions, placebo.as_ref());
            let (judged, keep_alive) = (candidate.judged.as_deref(), candidate.keep_alive);
            let measure =
                Measure { planner: &planner, conditions, placebo, judged, keep_alive, whole: None, counted: &[] };
            runs.push(play_segments(&segments, &group.baselines, &candidate.name, measure)?);
            self.report(n_requests(&segments));
        }
        let days = segments.iter().flat_map(|segment| &segment.steps).filter_map(|step| Some(step.at? / 86_400));
        Ok(TranscriptResult {
            name: found.path.display().to_string(),
            agent: found.kind.agent(),
            model: first.model().map(str::to_owned),
            messages: segments.iter().map(Transcript::n_messages).sum(),
            segments: segments.len(),
            paid,
            days: days.collect::<BTreeSet<_>>(),
            lines_skipped,
            runs,
        })
    }

    /// The results of the next transcript, if the noise is to be measured and there is another transcript.
    fn placebo(&self, n: usize) -> Result<Option<Placebo>, TranscriptError> {
        let other = (n + 1) % self.found.len().max(1);
        let is_wanted = self.conditions.placebo && other != n;
        let Some(found) = self.found.get(other).filter(|_| is_wanted) else { return Ok(None) };
        let segments = found.read(self.selection.model.as_deref(), &|_| false)?.transcripts;
        Placebo::of(&segments).map(Some)
    }

    fn report(&self, n_requests: usize) {
        let played = self.n_played.fetch_add(n_requests, Ordering::Relaxed) + n_requests;
        if let Some(progress) = self.conditions.progress {
            progress(played, self.n_requests * self.candidates.len());
        }
    }
}

impl<'a> Group<'a> {
    fn new(
        planner: &'a Planner,
        meter: Meter,
        segments: &[Transcript],
        conditions: &Conditions<'_>,
    ) -> Result<Self, TranscriptError> {
        let baselines = segments.iter().map(|segment| {
            let gauge = meter.for_model(segment.model());
            let sent = SentRequest::new(segment.body.clone(), &gauge, None)?;
            let counted = sent.beginnings(&segment.request_lengths);
            let mut figures = Figures::default();
            for request in &counted {
                figures.add_request(*request, gauge.window, false);
            }
            figures.compute_cost(conditions.prices);
            let whole = Some(sent).filter(|_| !segment.steps.is_empty());
            Ok(Baseline { cost: figures.cost, counted, whole })
        });
        let baselines = baselines.collect::<Result<_, TranscriptError>>()?;
        Ok(Self { planner, meter, baselines })
    }

    fn counts_for(&self, planner: &Planner) -> bool {
        self.planner.meter.is(&planner.meter)
    }
}

/// How many words of padding a segment needs.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an estimate")]
fn padding(segment: &Transcript, meter: &Meter) -> Result<usize, TranscriptError> {
    /// Where a segment grows by less, it does not show how many tokens are billed for each one that is counted.
    const MIN_GROWTH: f64 = 5000.0;
    /// The ratios that vocabularies have: `tokens::factor` has the source.
    const PLAUSIBLE: (f64, f64) = (0.75, 2.0);
    /// No context window takes more.
    const MOST: f64 = 1e7;
    let gauge = meter.for_model(segment.model());
    let count = |n: usize| -> Result<Option<(f64, f64)>, TranscriptError> {
        let Some(step) = segment.steps.get(n) else { return Ok(None) };
        let Some(usage) = step.usage else { return Ok(None) };
        let sent = SentRequest::new(segment.request(step.messages, &[]), &gauge, None)?;
        Ok(Some((sent.tokens() as f64, usage.input as f64)))
    };
    let Some((counted, billed)) = count(0)? else { return Ok(0) };
    let (last_counted, last_billed) = count(segment.steps.len().saturating_sub(1))?.unwrap_or((counted, billed));
    let growth = last_counted - counted;
    let (least, most) = PLAUSIBLE;
    let ratio = if growth < MIN_GROWTH { 1.0 } else { ((last_billed - billed) / growth).clamp(least, most) };
    let factor = meter.models().find(segment.model().unwrap_or_default()).token_factor.ratio();
    Ok(((billed / ratio - counted) / factor).clamp(0.0, MOST) as usize)
}

/// Plays the segments of a transcript through one policy: as they are, and with recalls.
fn play_segments(
    segments: &[Transcript],
    baselines: &[Baseline],
    policy: &str,
    measure: Measure<'_>,
) -> Result<PolicyResult, TranscriptError> {
    let planner = measure.planner;
    let window = segments.first().and_then(|segment| planner.meter.for_model(segment.model()).window);
    let planner::Settings { edits, forms, .. } = &planner.settings.policy;
    let has_edits = measure.judged.is_some() || !edits.is_empty() || !forms.is_empty();
    let mut outcome = Outcome::default();
    for (segment, Baseline { cost, counted, whole }) in segments.iter().zip(baselines) {
        let is_planned = measure.judged.is_none();
        let of_session = Measure { whole: whole.as_ref().filter(|_| is_planned), counted, ..measure };
        let mut played = if has_edits || whole.is_none() {
            regret::measure(segment, of_session)?
        } else {
            regret::unedited(segment, of_session)
        };
        played.regret.cost_unedited = *cost;
        played.regret.worst_segment = played.regret.percent_with_recalls();
        played.regret.list.iter_mut().for_each(|fault| fault.request += outcome.tokens.len());
        outcome.regret.list.append(&mut played.regret.list);
        outcome = outcome.plus(&played);
    }
    Ok(PolicyResult { policy: policy.to_owned(), window, outcome })
}

fn n_requests(segments: &[Transcript]) -> usize {
    segments.iter().map(|segment| segment.request_lengths.len()).sum()
}
