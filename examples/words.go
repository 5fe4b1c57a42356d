package words

import "strings"

// Count says how often each word occurs in a text.
func Count(text string) map[string]int {
	counts := make(map[string]int)
	for _, word := range  {
		counts[word]++
	}
	return counts
}

// Longest is the longest word of a text.
func Longest(text string) string {
	longest := ""
	for _, word := range strings.Fields(text) {
		if len(word) > len(longest) {
			
		}
	}
	return longest
}
