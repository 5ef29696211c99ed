//! Matches names with patterns in which `*` matches any number of characters and `?` one.

/// Whether the whole of `name` is what a pattern says.
pub(crate) fn matches(
    mut pattern: impl Iterator<Item = char> + Clone,
    mut name: impl Iterator<Item = char> + Clone,
) -> bool {
    // The pattern after the last star, and where in the name what the star matches would end next.
    let mut star = None;
    loop {
        match (pattern.next(), name.clone().next()) {
            (Some('*'), _) => star = Some((pattern.clone(), name.clone())),
            (Some(part), Some(found)) if part == '?' || part == found => drop(name.next()),
            (None, None) => return true,
            _ => {
                // The star takes one character more; the last star is the only one that ever needs to.
                let Some((behind, rest)) = &mut star else { return false };
                if rest.next().is_none() {
                    return false;
                }
                (pattern, name) = (behind.clone(), rest.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The same by trying all that a star may match.
    fn matches_slowly(pattern: &[char], name: &[char]) -> bool {
        match (pattern, name) {
            ([], _) => name.is_empty(),
            (['*', rest @ ..], _) => (0..=name.len()).any(|n| matches_slowly(rest, &name[n..])),
            ([part, rest @ ..], [found, behind @ ..]) => {
                (*part == '?' || part == found) && matches_slowly(rest, behind)
            }
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn the_last_star_is_the_only_one_that_needs_to_take_more(pattern in "[ab*?é]{0,8}", name in "[abé*]{0,8}") {
            let [parts, found]: [Vec<char>; 2] = [&pattern, &name].map(|text| text.chars().collect());
            prop_assert_eq!(matches(pattern.chars(), name.chars()), matches_slowly(&parts, &found));
        }
    }
}
