//! Plays all transcripts through all policies, on all cores.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{mem, panic, thread};

use super::discover::{self, FoundTranscript};
use super::regret::{self, Measure, Placebo};
use super::{
    Conditions, Figures, Noise, PolicyResult, PolicyTotal, PolicyUnderTest, Progress, Regret, Simulation,
    SummarySource, Transcript, TranscriptError, TranscriptResult, TranscriptSelection, UnreadableFile, play,
};

/// What the threads share.
struct Run<'a> {
    found: &'a [FoundTranscript],
    model: Option<&'a str>,
    candidates: &'a [PolicyUnderTest],
    conditions: &'a Conditions<'a>,
    next: AtomicUsize,
    n_played: AtomicUsize,
    n_requests: usize,
}

impl Simulation {
    /// Plays all transcripts through all policies.
    pub fn run(selection: &TranscriptSelection, candidates: &[PolicyUnderTest], conditions: &Conditions<'_>) -> Self {
        let mut unreadable = Vec::new();
        let mut found = discover::find_transcripts(&selection.paths, &mut unreadable);
        // Equal sizes are ordered by path, so that the same call prints the same table.
        found.sort_by(|a, b| b.n_bytes.cmp(&a.n_bytes).then_with(|| a.path.cmp(&b.path)));
        let model = selection.model.as_deref();
        let (mut readable, mut n_requests) = (Vec::new(), 0);
        for found in found {
            if selection.limit.is_some_and(|limit| readable.len() >= limit) {
                break;
            }
            match Transcript::read(&found.path, model) {
                Ok(transcript) => {
                    n_requests += transcript.request_lengths().len();
                    readable.push(found);
                }
                Err(error) => unreadable.push(UnreadableFile::new(name_of(&found.path), &error)),
            }
        }
        let (next, n_played) = Default::default();
        let run = Run { found: &readable, model, candidates, conditions, next, n_played, n_requests };
        let mut transcripts = Vec::new();
        for (found, played) in readable.iter().zip(run.play_all()) {
            match played {
                Ok(played) => transcripts.push(played),
                Err(error) => unreadable.push(UnreadableFile::new(name_of(&found.path), &error)),
            }
        }
        unreadable.sort_by(|a, b| a.name.cmp(&b.name));
        let totals = candidates.iter().enumerate().map(|(n, candidate)| {
            let runs = || transcripts.iter().filter_map(|played: &TranscriptResult| played.runs.get(n));
            PolicyTotal {
                policy: candidate.name.clone(),
                figures: runs().fold(Figures::default(), |sum, run| sum.plus(&run.figures)),
                regret: Regret::total(runs().map(|run| &run.regret)),
            }
        });
        let stand_in = match conditions.summary_source {
            SummarySource::StandIn(tokens) => Some(tokens),
            SummarySource::Model(_) => None,
        };
        Self { prices: conditions.prices, stand_in, totals: totals.collect(), transcripts, unreadable }
    }
}

impl Run<'_> {
    /// Plays the transcripts, each on one thread, and returns them in order.
    fn play_all(&self) -> Vec<Result<TranscriptResult, TranscriptError>> {
        let n_threads = thread::available_parallelism().map_or(1, usize::from).min(self.found.len());
        let mut played = thread::scope(|scope| {
            let threads: Vec<_> = (0..n_threads).map(|_| scope.spawn(|| self.play_some())).collect();
            let joined =
                threads.into_iter().map(|thread| thread.join().unwrap_or_else(|why| panic::resume_unwind(why)));
            joined.flatten().collect::<Vec<_>>()
        });
        played.sort_by_key(|(n, _)| *n);
        played.into_iter().map(|(_, played)| played).collect()
    }

    /// Plays transcripts that no other thread plays, until there are no more.
    fn play_some(&self) -> Vec<(usize, Result<TranscriptResult, TranscriptError>)> {
        let next = || self.next.fetch_add(1, Ordering::Relaxed);
        let mut played = Vec::new();
        let mut n = next();
        while let Some(found) = self.found.get(n) {
            played.push((n, self.play(n, &found.path)));
            n = next();
        }
        played
    }

    fn play(&self, n: usize, path: &Path) -> Result<TranscriptResult, TranscriptError> {
        let transcript = Transcript::read(path, self.model)?;
        let placebo = self.placebo(n)?;
        let segments = transcript.segments()?;
        let runs = self.candidates.iter().map(|candidate| {
            let planner = transcript.choose(&candidate.planners);
            let recorded = transcript.with_recorded_windows(planner);
            let planner = recorded.as_ref().unwrap_or(planner);
            let measure = Measure { planner, conditions: self.conditions, placebo: placebo.as_ref() };
            let played = play_segments(&segments, &candidate.name, measure);
            self.report(transcript.request_lengths().len());
            played
        });
        Ok(TranscriptResult {
            name: name_of(path),
            model: transcript.model().map(str::to_owned),
            messages: transcript.n_messages(),
            segments: segments.len(),
            runs: runs.collect::<Result<_, _>>()?,
        })
    }

    /// The results of the next transcript, if the noise is to be measured and there is another transcript.
    fn placebo(&self, n: usize) -> Result<Option<Placebo>, TranscriptError> {
        let other = (n + 1) % self.found.len().max(1);
        let wanted = self.conditions.noise == Noise::Placebo && other != n;
        let path = self.found.get(other).filter(|_| wanted).map(|found| &found.path);
        path.map(|path| Placebo::of(&Transcript::read(path, self.model)?)).transpose()
    }

    fn report(&self, n_requests: usize) {
        let played = self.n_played.fetch_add(n_requests, Ordering::Relaxed) + n_requests;
        if let Some(progress) = self.conditions.progress {
            progress(Progress { played, all: self.n_requests * self.candidates.len() });
        }
    }
}

/// Plays the segments of a transcript through one policy: as they are, and with recalls.
fn play_segments(segments: &[Transcript], policy: &str, measure: Measure<'_>) -> Result<PolicyResult, TranscriptError> {
    let Measure { planner, conditions, placebo } = measure;
    let window = segments.first().and_then(|segment| planner.meter.for_model(segment.model()).window());
    let (mut figures, mut regret, mut tokens) = (Figures::default(), Regret::default(), Vec::new());
    for segment in segments {
        let mut played = play::play(segment, planner, conditions)?;
        figures = figures.plus(&played.figures);
        let summaries = mem::take(&mut played.summaries);
        let mut of_segment = if played.has_edited {
            let unedited = play::play_unedited(segment, planner, conditions.prices)?;
            Regret { cost_unedited: unedited, ..regret::measure(segment, measure, summaries)? }.of_one_segment()
        } else {
            Regret::none(segment.n_answers(), played.figures.cost, placebo)
        };
        of_segment.list.iter_mut().for_each(|fault| fault.request += tokens.len());
        regret.add(of_segment);
        tokens.append(&mut played.tokens);
    }
    Ok(PolicyResult { policy: policy.to_owned(), window, figures, regret, tokens })
}

fn name_of(path: &Path) -> String {
    path.display().to_string()
}
